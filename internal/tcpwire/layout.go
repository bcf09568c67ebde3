package tcpwire

// part is a part of a message.
type part uint8

const (
	pMagic  part = iota + 1 // the number that VALIDATE carries
	pKey                    // Key
	pValue                  // Value
	pOld                    // Old
	pByte                   // N, one byte
	pWord                   // N, four bytes
	pInt                    // N, eight bytes
	pKeys                   // a count, and as many Keys
	pPairs                  // a count, and as many pairs of Key and Value
	pValues                 // as many Values as the request has Keys
	pPop                    // N, and a Value if N > 0
)

// requests has the parts of each operation's request, after its number.
var requests = [opEnd][]part{
	OpValidate:   {pMagic},
	OpSet:        {pKey, pValue},
	OpCompareSet: {pKey, pOld, pValue},
	OpGet:        {pKey},
	OpAdd:        {pKey, pInt},
	OpCheck:      {pKeys},
	OpWait:       {pKeys},
	OpDeleteKey:  {pKey},
	OpAppend:     {pKey, pValue},
	OpMultiGet:   {pKeys},
	OpMultiSet:   {pPairs},
	OpPing:       {pWord},
	OpQueuePush:  {pKey, pValue},
	OpQueuePop:   {pKey},
	OpQueueLen:   {pKey},
	OpBarrier:    {pKey, pInt},
}

// replies has the parts of each operation's reply.
var replies = [opEnd][]part{
	OpCompareSet: {pValue},
	OpGet:        {pValue},
	OpAdd:        {pInt},
	OpCheck:      {pByte},
	OpWait:       {pByte},
	OpGetNumKeys: {pInt},
	OpDeleteKey:  {pInt},
	OpMultiGet:   {pValues},
	OpCancelWait: {pByte},
	OpPing:       {pWord},
	OpQueuePop:   {pPop},
	OpQueueLen:   {pInt},
	OpListKeys:   {pKeys},
	OpBarrier:    {pByte},
}

// parts returns op's row of one of the tables, or nil for an unknown operation.
func (o Op) parts(table *[opEnd][]part) []part {
	if o >= opEnd {
		return nil
	}
	return table[o]
}

// Answered reports whether the request has a reply.
func (o Op) Answered() bool { return len(o.parts(&replies)) > 0 }
