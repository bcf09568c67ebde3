package checkpoint

import (
	"fmt"
	"io/fs"
	"syscall"
)

// inodeOf returns which file st describes, and when it was changed last: users can set the other time.
func inodeOf(st fs.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(sys.Dev, sys.Ino, sys.Ctim)
}
