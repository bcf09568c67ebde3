package link

// Addr is where a rank listens for TCP.
func Addr(m *Mesh, rank int) string { return m.peers[rank].Addr }

// Redirect makes m look for a rank elsewhere.
func Redirect(m *Mesh, rank int, addr string) { m.peers[rank].Addr = addr }

// Token returns what a rank that dials m must know.
func Token(m *Mesh) []byte { return m.token }
