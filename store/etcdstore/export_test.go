package etcdstore

// Kill ends e as a crash of its process would: etcd is told nothing.
func Kill(e *Engine) {
	e.stop()
	e.members.close()
}
