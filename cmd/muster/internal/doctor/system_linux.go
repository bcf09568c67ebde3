package doctor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// holder finds the socket that listens at port, and the process that has it open.
func holder(port int) string {
	inode := listening("/proc/net/tcp", port)
	if inode == "" {
		inode = listening("/proc/net/tcp6", port)
	}
	if inode == "" {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); to != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		name, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(dir))
	}
	return "a process of another user, or of another container"
}

// listening returns the inode of the socket that listens at port, from a table of the kernel.
func listening(table string, port int) string {
	f, err := os.Open(table)
	if err != nil {
		return ""
	}
	defer f.Close()
	const listen = "0A"
	for lines := bufio.NewScanner(f); lines.Scan(); {
		col := strings.Fields(lines.Text())
		if len(col) < 10 || col[3] != listen {
			continue
		}
		_, hex, _ := strings.Cut(col[1], ":")
		if n, err := strconv.ParseInt(hex, 16, 32); err == nil && int(n) == port {
			return col[9]
		}
	}
	return ""
}

// ephemeral returns the range of ports that the system gives to clients.
func ephemeral() (first, last int) {
	b, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	_, _ = fmt.Sscan(string(b), &first, &last)
	return first, last
}

// kinds maps magic numbers to file systems: those that need special care, and the most common ones.
var kinds = map[int64]string{
	unix.NFS_SUPER_MAGIC: "nfs", unix.FUSE_SUPER_MAGIC: "fuse", unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.V9FS_MAGIC: "9p",
	unix.SMB2_SUPER_MAGIC: "smb", unix.CEPH_SUPER_MAGIC: "ceph", 0x0bd00bd0: "lustre", 0x47504653: "gpfs",
}

func volume(dir string) (Volume, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Volume{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Volume{Kind: kinds[st.Type], Free: st.Bavail * uint64(st.Bsize)}, nil
}
