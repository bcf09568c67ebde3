package svgpng_test

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/svgpng"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/trace/timeline"
)

const style = `<style>.mt{--bg:#ffffff;--fg:#000000;--a:#d8343f}
@media (prefers-color-scheme:dark){.mt{--bg:#000;--a:#ffffff}}
.mt .b{fill:var(--bg)}.mt .a{fill:var(--a)}.mt .as{stroke:var(--a)}.mt .h{font-size:16px}.mt .e{text-anchor:end}.mt .m{text-anchor:middle}
.mt .f{stroke:var(--a);stroke-width:2}.mt .q{stroke:var(--a);stroke-width:2;stroke-dasharray:3 3}</style><rect class="b" width="100%" height="100%"/>`

// paint paints what is in a picture of 40 × 20, which has two pixels for each.
func paint(t *testing.T, inner string) image.Image {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, svgpng.Write(&b, strings.NewReader(`<svg class="mt" width="40" height="20">`+style+inner+`</svg>`)))
	img, err := png.Decode(&b)
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, 80, 40), img.Bounds())
	return img
}

var (
	white = color.RGBA{0xff, 0xff, 0xff, 0xff}
	red   = color.RGBA{0xd8, 0x34, 0x3f, 0xff}
)

func TestShapes(t *testing.T) {
	for name, c := range map[string]struct {
		svg     string
		on, off []image.Point
	}{
		"rect":     {`<rect class="a" x="5" y="5" width="10" height="5"><title>x</title></rect>`, pts(10, 10, 29, 19), pts(9, 10, 30, 10, 10, 20)},
		"vertical": {`<path class="f" d="M10 2 V8"/>`, pts(18, 4, 21, 15), pts(17, 4, 22, 4, 18, 16)},
		"strokes":  {`<path class="as" stroke-width="4.0" d="M10 10.0h3M20 10.0h2"/>`, pts(20, 16, 25, 23, 40, 16), pts(26, 16, 39, 16, 44, 16, 20, 24)},
		"across":   {`<path class="f" d="M4 10 H8"/>`, pts(8, 20, 15, 20), pts(16, 20)},
		"cross":    {`<path class="f" transform="translate(10 5)" d="M0 0 l8 8 m0 -8 l-8 8"/>`, pts(22, 12, 34, 24, 34, 12, 22, 24, 28, 18), pts(28, 10, 20, 18)},
		"dashes":   {`<path class="q" d="M10 0 V18"/>`, pts(20, 2, 20, 14, 20, 26), pts(20, 8, 20, 20)},
	} {
		t.Run(name, func(t *testing.T) {
			img := paint(t, c.svg)
			for _, at := range c.on {
				require.Equal(t, red, color.RGBAModel.Convert(img.At(at.X, at.Y)), at)
			}
			for _, at := range c.off {
				require.Equal(t, white, color.RGBAModel.Convert(img.At(at.X, at.Y)), at)
			}
		})
	}
	half := paint(t, `<rect class="a" x="5" y="5" width="10" height="5" opacity="0.50"/>`).At(12, 12)
	r, g, _, _ := half.RGBA()
	require.InDelta(t, 0xeb, r>>8, 2)
	require.InDelta(t, 0x99, g>>8, 2)
}

func pts(xy ...int) (all []image.Point) {
	for i := 0; i < len(xy); i += 2 {
		all = append(all, image.Pt(xy[i], xy[i+1]))
	}
	return all
}

func TestText(t *testing.T) {
	dark := func(img image.Image, x0, x1 int) (n int) {
		for y := range 40 {
			for x := x0; x < x1; x++ {
				if r, _, _, _ := img.At(x, y).RGBA(); r < 0x8000 {
					n++
				}
			}
		}
		return n
	}
	start := paint(t, `<text x="20" y="15">mm<title>far more than there is room for</title></text>`)
	end := paint(t, `<text class="e" x="20" y="15">mm</text>`)
	middle := paint(t, `<text class="m" x="20" y="15">mm</text>`)
	large := paint(t, `<text class="h" x="0" y="15">mm</text>`)
	require.Zero(t, dark(start, 0, 40))
	require.Positive(t, dark(start, 40, 80))
	require.Zero(t, dark(end, 40, 80))
	require.Positive(t, dark(end, 0, 40))
	require.InDelta(t, dark(middle, 0, 40), dark(middle, 40, 80), 25)
	require.Greater(t, dark(large, 0, 80), dark(start, 0, 80)*5/4)
}

func TestWhatIsNoPicture(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "EOF",
		"<svg>":                               "0 × 0 pixels",
		`<svg width="20000" height="20000"/>`: "take .svg",
		`<rect x="1"/>`:                       "there is no svg around rect",
		`<svg width="9" height="9"><text>`:    "unexpected EOF",
	} {
		require.ErrorContains(t, svgpng.Write(io.Discard, strings.NewReader(in)), want, in)
	}
	require.ErrorIs(t, svgpng.Write(full{}, strings.NewReader(`<svg width="9" height="9"/>`)), io.ErrShortWrite)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// All that package timeline draws is painted in its colours.
func TestPictureOfATrace(t *testing.T) {
	start := time.Now()
	var files []*timeline.File
	for rank := range 2 {
		var b bytes.Buffer
		c := trace.Chrome(&b)
		for seq := range 3 {
			at := start.Add(time.Duration(seq) * time.Second)
			e := trace.Event{Op: "pgroup.barrier", Group: "world", ID: 1, Seq: uint64(seq + 1), Rank: rank, Size: 2, Last: 1, Start: at, End: at.Add(900 * time.Millisecond)}
			e.Start = e.Start.Add(time.Duration(rank) * 500 * time.Millisecond)
			if seq == 2 {
				e.Err = errors.New("gone")
			}
			c.Record(t.Context(), e)
		}
		require.NoError(t, c.Flush())
		f, err := timeline.Read(fmt.Sprintf("rank%d", rank), &b) // without an end
		require.NoError(t, err)
		files = append(files, f)
	}
	tl, err := timeline.Merge(files...)
	require.NoError(t, err)
	var svg, out bytes.Buffer
	require.NoError(t, tl.SVG(&svg, &timeline.PictureOptions{Width: 800}))
	require.NoError(t, svgpng.Write(&out, &svg))
	img, err := png.Decode(&out)
	require.NoError(t, err)
	require.Equal(t, 1600, img.Bounds().Dx())
	seen := map[color.Color]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			seen[color.RGBAModel.Convert(img.At(x, y))]++
		}
	}
	for name, c := range map[string]color.RGBA{"ground": white, "waits": {0xf3, 0xcf, 0x7d, 0xff}, "works": {0x3f, 0x7f, 0xd6, 0xff}, "alone": red} {
		require.Greater(t, seen[c], 1000, name)
	}
	require.Positive(t, seen[color.RGBA{0x1d, 0x24, 0x33, 0xff}], "text")
}
