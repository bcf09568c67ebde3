package launch

// MaxLine is where a line is cut.
const MaxLine = maxLine

// Prefixer gives tests the prefixing of one stream without a process.
func Prefixer(prefix string, send func([]byte)) (add func([]byte), flush func()) {
	l := &lines{prefix: prefix, send: send, each: func([]byte) {}}
	return l.add, l.flush
}
