// Package tcpstore implements the protocol of PyTorch's TCPStore on both sides. With Protocol,
// unmodified Python processes use a store.Server as their TCPStore. With Dial, Go processes use a
// TCPStore that Python hosts.
//
//	srv := &store.Server{Engine: engine, Protocol: &tcpstore.Protocol{}}
//
// Either way Go and Python see the same entries. The key "a" in Python is "a" in Go:
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
// Names that contain a zero byte are internal to the store and hidden from Python: queues, the keys
// that PyTorch reserves for itself, and the entries in which servers publish their clients, for
// status.Fetch.
package tcpstore
