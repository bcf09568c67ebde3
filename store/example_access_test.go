package store_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/store"
)

// Peers that know one secret may write everything; peers that know the other may read the
// configuration.
func ExampleServer_access() {
	ctx := context.Background()
	owner, viewer := []byte("an owner's 32 random bytes, say."), []byte("a viewer's, from ReadSecret too.")
	l, err := store.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := &store.Server{Engine: new(store.Memory), Access: []store.Access{
		{Secret: owner, Write: true},
		{Secret: viewer, Prefix: "config/"},
	}}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()

	dial := func(secret []byte) *store.Store {
		s, err := store.Dial(ctx, l.Addr().String(), &store.DialOptions{Secret: secret})
		if err != nil {
			e, _ := errors.AsType[*store.Error](err)
			fmt.Println(errors.Is(err, store.ErrDenied), e.Detail)
			return nil
		}
		return s
	}
	o, v := dial(owner), dial(viewer)
	defer o.Close()
	defer v.Close()
	fmt.Println(o.Set(ctx, "config/lr", []byte("0.1"), nil))
	lr, err := v.Get(ctx, "config/lr")
	fmt.Println(string(lr), err)
	fmt.Println(v.Set(ctx, "config/lr", []byte("9"), nil))
	dial(nil)
	// Output:
	// <nil>
	// 0.1 <nil>
	// store: set "config/lr": denied: no right to write "config/lr": this peer may read below "config/"
	// true this store requires a secret, and none was given
}
