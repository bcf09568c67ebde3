// Package torchstore speaks the protocol of PyTorch's TCPStore, both ways: with Protocol, unmodified Python processes use a
// store.Server as if it were theirs; with Dial, Go processes use a TCPStore that Python hosts.
//
//	srv := &store.Server{Engine: engine, Protocols: []store.Protocol{&torchstore.Protocol{}}}
//
// Either way Go and Python see the same entries. What Python calls "a" is "a" in Go too:
//
//	Python                      Go
//	store.set("a", "1")         s.Set(ctx, "a", []byte("1"), nil)
//	store.get("a")              s.Wait(ctx, "a")
//	store.add("n", 1)           s.Add(ctx, "n", 1)
//	store.compare_set("a", …)   s.Swap(ctx, "a", …)
//	PrefixStore("p", store)     store.Prefix(s, "p/")
//	store.queue_push("q", v)    s.Push(ctx, "q", v)
//	store.delete_key("a")       s.Delete(ctx, "a")
//
// Names with a zero byte in them are the store's own, and not shown to Python: queues, barriers, and what PyTorch keeps for itself.
package torchstore
