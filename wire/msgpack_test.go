package wire_test

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

type layer struct {
	Name    string            `codec:"name"`
	Weights []float32         `codec:"weights,omitempty"`
	Raw     []byte            `codec:"raw"`
	Meta    map[string]any    `codec:"meta"`
	Sub     *layer            `codec:"sub,omitempty"`
	Tags    map[string]string `codec:"tags"`
	hidden  int
}

// roundTrip returns v as another rank decodes it.
func roundTrip[T any](t *testing.T, v T) T {
	t.Helper()
	b, err := wire.MsgPack.Append([]byte("front"), &v)
	require.NoError(t, err, "Append(%T)", v)
	require.True(t, bytes.HasPrefix(b, []byte("front")), "Append(%T) lost what was there: %q", v, b)
	var got T
	b = b[len("front"):]
	require.NoError(t, wire.MsgPack.Parse(b, &got), "Parse(%T)", v)
	clear(b) // the parsed value must not alias it
	return got
}

func testRoundTrip[T any](t *testing.T, v T) {
	t.Helper()
	assert.Equal(t, v, roundTrip(t, v))
}

func TestMsgPackKeepsValues(t *testing.T) {
	type uniqueID [128]byte
	var id uniqueID
	for i := range id {
		id[i] = byte(i)
	}
	testRoundTrip(t, id)
	testRoundTrip(t, [128]byte(id))
	testRoundTrip(t, [3]int{1, 2, 3})
	testRoundTrip(t, 0)
	testRoundTrip(t, -7)
	testRoundTrip(t, uint64(math.MaxUint64))
	testRoundTrip(t, int64(math.MinInt64))
	testRoundTrip(t, 3.25)
	testRoundTrip(t, float32(math.Inf(-1)))
	testRoundTrip(t, "héllo\x00")
	testRoundTrip(t, true)
	testRoundTrip(t, []string{"a", "", "c"})
	testRoundTrip(t, map[string]int{"a": 1, "b": 2})
	testRoundTrip(t, map[int][]byte{1: {1}, 2: {}})
	testRoundTrip(t, struct{}{})
	testRoundTrip(t, time.Unix(1700000000, 123456789).UTC())
	testRoundTrip(t, 90*time.Second)
	testRoundTrip(t, &layer{Name: "p"})
	testRoundTrip(t, (*layer)(nil))
	testRoundTrip(t, []any(nil))
	testRoundTrip(t, layer{
		Name: "block.0", Weights: []float32{1, 2.5}, Raw: []byte{0, 255}, Tags: map[string]string{"k": "v"},
		Meta: map[string]any{"text": "s", "bytes": []byte("s"), "n": int64(-3), "list": []any{"x", int64(1), nil, map[string]any{"deep": true}}},
		Sub:  &layer{Name: "block.1", Raw: []byte{}},
	})
}

// TestMsgPackUnderAny checks that text and bytes within an any stay different, and that numbers
// keep their sign.
func TestMsgPackUnderAny(t *testing.T) {
	for _, v := range []any{"text", []byte("bytes"), int64(-5), 1.5, true, nil, []any{"a", []byte("b")}, map[string]any{"k": []any{}}} {
		testRoundTrip(t, v)
	}
}

func TestMsgPackIsCanonical(t *testing.T) {
	m := map[string]any{}
	for k := range strings.SplitSeq("q w e r t y u i o p a s d f g h j k l", " ") {
		m[k] = map[string]int{k: 1, "z": 2, "b": 3}
	}
	first, err := wire.MsgPack.Append(nil, m)
	require.NoError(t, err)
	for range 20 {
		again, err := wire.MsgPack.Append(nil, m)
		if err != nil || !bytes.Equal(again, first) {
			t.Fatalf("the same map has other bytes: %v", err)
		}
	}
}

func TestMsgPackIgnoresHiddenFields(t *testing.T) {
	if got := roundTrip(t, layer{Name: "x", hidden: 3}); got.hidden != 0 {
		t.Errorf("an unexported field passed: %+v", got)
	}
}

// TestMsgPackGolden checks that Python's msgpack encodes the same bytes.
func TestMsgPackGolden(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{1, "\x01"},
		{-1, "\xff"},
		{"a", "\xa1a"},
		{[]byte("a"), "\xc4\x01a"},
		{[2]byte{1, 2}, "\xc4\x02\x01\x02"},
		{nil, "\xc0"},
		{[]int{1, 2}, "\x92\x01\x02"},
		{map[string]int{"b": 1, "a": 2}, "\x82\xa1a\x02\xa1b\x01"},
		{1.5, "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"},
		{strings.Repeat("x", 40), "\xd9\x28" + strings.Repeat("x", 40)},
	} {
		b, err := wire.MsgPack.Append(nil, c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%#v: got %q, %v, want %q", c.v, b, err, c.want)
		}
	}
}

func TestMsgPackRefuses(t *testing.T) {
	parse := func(name string, b string, v any) {
		t.Helper()
		if err := wire.MsgPack.Parse([]byte(b), v); err == nil {
			t.Errorf("%s: no error, got %#v", name, reflect.ValueOf(v).Elem())
		}
	}
	var (
		i    int
		s    string
		a    any
		arr  [2]int
		tiny int8
		l    layer
	)
	parse("no bytes", "", &i)
	parse("trailing bytes", "\x01\x01", &i)
	parse("a string as a number", "\xa1a", &i)
	parse("a number as a string", "\x01", &s)
	parse("too large a number", "\xcd\x01\x00", &tiny)
	parse("a longer array", "\x93\x01\x02\x03", &arr)
	parse("a cut string", "\xa5ab", &s)
	parse("a huge list that is not there", "\xdd\xff\xff\xff\xff", &a)
	parse("a huge map that is not there", "\xdf\xff\xff\xff\xff", &a)
	parse("huge bytes that are not there", "\xc6\xff\xff\xff\xff", &a)
	parse("a huge list of structs that is not there", "\xdd\x7f\xff\xff\xff", &[]layer{})
	parse("text in a struct's list of numbers", "\x81\xa7weights\x91\xa1a", &l)
	parse("too deep", strings.Repeat("\x91", 1<<20)+"\xc0", &a)
	parse("too deep a map", strings.Repeat("\x81\xa1a", 1<<20)+"\xc0", &a)
	parse("the reserved byte", "\xc1", &a)
	parse("not a pointer's value", "\x01", (*int)(nil))
}

func TestMsgPackRefusesToEncode(t *testing.T) {
	loop := &layer{Name: "loop"}
	loop.Sub = loop
	type callback struct{ Then []func() }
	type both struct{ hidden, Shown chan int } //nolint:unused // hidden is of the type of Shown
	type pointer *pointer
	var itself pointer
	itself = &itself
	circle := map[string]any{}
	circle["c"] = []any{circle}
	deep := nested(256)
	for name, v := range map[string]any{
		"a channel": make(chan int), "a function": func() {}, "a cycle": loop, "a map of channels": map[string]chan int{},
		"a field": &callback{}, "a field below a slice": []callback{}, "a complex number": 1i, "a field of the type of a hidden one": both{},
		"a map of itself": circle, "a pointer to itself": itself, "what cannot be parsed": deep, "a deep key": map[any]int{&deep: 1},
	} {
		b, err := wire.MsgPack.Append([]byte("front"), v)
		assert.Error(t, err, "%s: no error, %q", name, b)
	}
	if b, err := wire.MsgPack.Append(nil, 1); err != nil || string(b) != "\x01" {
		t.Errorf("after failures: %q, %v", b, err)
	}
	var got any
	b, err := wire.MsgPack.Append(nil, nested(255))
	require.NoError(t, err)
	require.NoError(t, wire.MsgPack.Parse(b, &got), "as deep as may be")
}

// nested returns lists in n levels.
func nested(n int) (v any) {
	for range n {
		v = []any{v}
	}
	return v
}

// evil cannot be decoded.
type evil struct{}

func (e *evil) UnmarshalBinary([]byte) error { panic("a decoder that panics") }

func (e *evil) MarshalBinary() ([]byte, error) { return []byte("x"), nil }

func TestMsgPackMakesPanicsErrors(t *testing.T) {
	err := wire.MsgPack.Parse([]byte("\xc4\x01x"), new(evil))
	assert.ErrorContains(t, err, "panics")
}

func TestMsgPackByManyGoroutines(t *testing.T) {
	done := make(chan bool)
	for i := range 8 {
		go func() {
			ok := true
			for n := range 200 {
				v := layer{Name: strings.Repeat("n", n), Raw: []byte{byte(i)}}
				b, err := wire.MsgPack.Append(nil, &v)
				var got layer
				ok = ok && err == nil && wire.MsgPack.Parse(b, &got) == nil && reflect.DeepEqual(got, v)
			}
			done <- ok
		}()
	}
	for range 8 {
		if !<-done {
			t.Error("a value changed")
		}
	}
}

// TestMsgPackLarge checks that the time to decode bytes grows with their length, and not with its
// square: the library allocates in few steps.
func TestMsgPackLarge(t *testing.T) {
	type config struct{ Raw []byte }
	large := bytes.Repeat([]byte{7}, 4<<20)
	list := make([]any, 200_000)
	for name, v := range map[string]any{"bytes": large, "a struct": config{large}, "a map": map[string]any{"raw": large}, "a list": list} {
		b, err := wire.MsgPack.Append(nil, v)
		require.NoError(t, err)
		got := reflect.New(reflect.TypeOf(v))
		allocs := testing.AllocsPerRun(1, func() {
			got = reflect.New(reflect.TypeOf(v))
			require.NoError(t, wire.MsgPack.Parse(b, got.Interface()))
		})
		require.True(t, reflect.DeepEqual(v, got.Elem().Interface()), name)
		require.Less(t, allocs, 100., name)
	}
}

// TestMsgPackOfEachFormat checks a large message with a value of each format: it is decoded, and
// refused if its end is missing, without an allocation of what its lengths promise.
func TestMsgPackOfEachFormat(t *testing.T) {
	pad := "\xc5\x08\x00" + strings.Repeat("p", 2<<10)
	x := strings.Repeat("\x01", 16)
	for _, f := range []string{
		"\x00", "\x7f", "\xe0", "\xff", "\xc0", "\xc2", "\xc3", "\x80", "\x81\xa1a\x01", "\x90", "\x93\x01\x02\x03", "\xa0", "\xa3abc",
		"\xc4\x02ab", "\xc5\x00\x02ab", "\xc6\x00\x00\x00\x02ab", "\xc7\x02\x05ab", "\xc8\x00\x02\x05ab", "\xc9\x00\x00\x00\x02\x05ab",
		"\xca" + x[:4], "\xcb" + x[:8], "\xcc\x01", "\xcd" + x[:2], "\xce" + x[:4], "\xcf" + x[:8], "\xd0\x01", "\xd1" + x[:2], "\xd2" + x[:4], "\xd3" + x[:8],
		"\xd4\x05" + x[:1], "\xd5\x05" + x[:2], "\xd6\x05" + x[:4], "\xd7\x05" + x[:8], "\xd8\x05" + x, "\xd9\x02ab", "\xda\x00\x02ab", "\xdb\x00\x00\x00\x02ab",
		"\xdc\x00\x02\x01\x02", "\xdd\x00\x00\x00\x02\x01\x02", "\xde\x00\x01\xa1a\x01", "\xdf\x00\x00\x00\x01\xa1a\x01",
	} {
		var small, large []any
		require.NoError(t, wire.MsgPack.Parse([]byte("\x91"+f), &small), "%q", f)
		b := []byte("\x92" + pad + f)
		require.NoError(t, wire.MsgPack.Parse(b, &large), "%q", f)
		require.Equal(t, small[0], large[1], "%q", f)
		require.Equal(t, 2<<10, len(large[0].([]byte)))
		for n := 1; n <= len(f); n++ {
			require.Error(t, wire.MsgPack.Parse(b[:len(b)-n], &large), "%q without %d bytes", f, n)
		}
	}
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := allocated()
	for _, f := range []string{"\xc1", "\xc6\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff", "\xc9\xff\xff\xff\xff\x05", "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", strings.Repeat("\xdd\xff\xff\xff\xff", 200)} {
		var v any
		require.Error(t, wire.MsgPack.Parse([]byte("\x92"+pad+f), &v), "%q", f)
		require.Error(t, wire.MsgPack.Parse([]byte("\x92"+pad+f), new([]layer)), "%q", f)
	}
	require.Less(t, allocated()-before, uint64(64<<20))
}

// FuzzMsgPack checks that any input is a value or an error, and that a value has an encoding that
// decodes to it again.
func FuzzMsgPack(f *testing.F) {
	for _, v := range []any{1, "s", []byte{1}, []any{nil, 1.5}, map[string]any{"a": 1}, layer{Name: "x", Sub: &layer{}}, time.Unix(1, 1)} {
		b, err := wire.MsgPack.Append(nil, v)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	f.Add([]byte("\xd6\xff\x00\x00\x00\x00"))
	f.Add([]byte("\xc7\x0c\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l layer
		_ = wire.MsgPack.Parse(b, &l)
		_ = wire.MsgPack.Parse(b, new([]map[int]string))
		_ = wire.MsgPack.Parse(b, new([4]byte))
		var v, again any
		if wire.MsgPack.Parse(b, &v) != nil {
			return
		}
		out, err := wire.MsgPack.Append(nil, v)
		if err != nil || strings.Contains(fmt.Sprintf("%T %#v", v, v), "codec.RawExt") {
			return // an unknown extension, which is not a value of this package
		}
		require.NoError(t, wire.MsgPack.Parse(out, &again), "%q gave %#v, whose bytes %q are no value", b, v, out)
	})
}
