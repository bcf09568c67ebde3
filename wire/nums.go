package wire

import "time"

// The elements of Reply.Nums, which each operation gives a meaning of its own; for OpJoin, see Formed.

// AppendListed appends those of one key of OpList: its revision, and the time until it expires, or 0.
func AppendListed(nums []int64, rev uint64, left time.Duration) []int64 {
	return append(nums, int64(rev), int64(left))
}

// Listed returns what AppendListed has appended for r.Keys[i].
func (r *Reply) Listed(i int) (rev uint64, left time.Duration) {
	return uint64(r.Nums[2*i]), time.Duration(r.Nums[2*i+1])
}

// AppendChanged appends those of one key of OpWatch: the revision, and what happened.
func AppendChanged(nums []int64, rev uint64, how Change) []int64 {
	return append(nums, int64(rev), int64(how))
}

// Changed returns what AppendChanged has appended for r.Keys[i].
func (r *Reply) Changed(i int) (rev uint64, how Change) {
	return uint64(r.Nums[2*i]), Change(r.Nums[2*i+1])
}

// AppendNextPage appends where the next page of OpStatus begins.
func AppendNextPage(nums []int64, generation uint64, rank int) []int64 {
	return append(nums, int64(generation), int64(rank))
}

// NextPage returns what AppendNextPage has appended; 0, 0 if that is not all of Nums.
func (r *Reply) NextPage() (generation uint64, rank int) {
	if len(r.Nums) != 2 {
		return 0, 0
	}
	return uint64(r.Nums[0]), int(r.Nums[1])
}
