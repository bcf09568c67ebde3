package collective

// Apart makes a rank share memory as if it were a process of its own.
func Apart(o *Options, process string) { o.process = process }
