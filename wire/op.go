package wire

import "fmt"

// Op is the operation of a frame. Numbers are append-only; docs/reference/protocol.md has the
// table.
type Op uint8

const (
	OpHello        Op = iota + 1 // opens or resumes a session; the reply has its number
	OpGoodbye                    // ends the session: its ranks have left, and have not failed
	OpCancel                     // cancels the call with this frame's id
	OpPing                       // is answered at once
	OpGet                        // returns the value of one key, at once
	OpSet                        // sets a key
	OpWait                       // waits until all its keys exist
	OpAdd                        // adds to a counter
	OpSwap                       // compares and swaps a value
	OpAppend                     // appends to a value
	OpDelete                     // deletes keys
	OpList                       // returns a page of the entries below a prefix
	OpWatch                      // returns the changes below a prefix after a revision, and waits for one
	OpJoin                       // joins the rendezvous of a group as one of its ranks
	OpLeave                      // leaves a group, or revokes it (abort)
	OpFollow                     // waits until a generation is revoked
	OpCollect                    // casts one rank's vote for one record: a collective operation
	OpSend                       // appends a message to a stream between two ranks
	OpRecv                       // waits for a message of a stream
	OpExpired                    // returns how many messages of a rank expired unread
	OpLost                       // a session's connection has broken; sent only by servers and relays
	OpMembers                    // returns what the ranks of a group said of themselves when they joined
	OpSendReady                  // waits until a message fits into a stream
	OpGrant                      // makes a lease
	OpKeepAlive                  // keeps a lease alive
	OpRevoke                     // ends a lease; its entries are deleted
	OpSkip                       // uses a sequence number without a change
	OpProbe                      // liveness probe of a server, which the client sends back
	OpProof                      // the server's challenge, and the client's proof of the secret
	OpBackup                     // returns a part of a copy of the store
	OpRelay                      // carries a frame of one or several connections of a relay
	OpVotes                      // carries votes of several connections of a relay for one record
	OpStatus                     // returns a page of the store's status
	OpPush                       // appends a value to a queue
	OpPop                        // removes the first value of a queue
	OpCloseChannel               // closes a channel: the rank makes no more calls on it
	OpAck                        // acknowledges the messages of a stream up to a position
	OpStacks                     // asks a rank for its stacks; a server asks its client, which answers
	OpProgress                   // reports the progress of a rank in its phase
	OpStalled                    // fails the operation in which this frame's call waits: a rank has stalled; only servers apply it
	opEnd
)

// Right is the right that an operation needs, where a store restricts what its clients may do.
type Right uint8

const (
	// access to everything; also for operations that the table does not have
	NeedAll      Right = iota
	NeedNothing        // no right: the operation concerns the session, or a member of the session
	NeedRead           // to read its key
	NeedReads          // to read its keys
	NeedBelow          // to read all keys that begin with its key
	NeedWrite          // to write its key
	NeedWrites         // to write its keys
	NeedJoin           // to write below the group's name
	NeedAnything       // to write any key
)

// opInfo is what clients, servers and engines need to know about an operation.
type opInfo struct {
	name       string // for errors and status pages
	right      Right
	waits      bool  // see Op.Waits
	readOnly   bool  // see Op.ReadOnly
	keepsValue bool  // see Op.KeepsValue
	fields     field // the parts of its request's body
}

// ops is the table of operations. A new operation needs a constant and a row here, a handler in
// package core, a method of store.Store, and a row in docs/reference/protocol.md.
var ops = [opEnd]opInfo{
	OpHello:        {name: "hello", right: NeedNothing, keepsValue: true, fields: fTimeout | fKey | fValue | fToken | fResume},
	OpGoodbye:      {name: "goodbye", right: NeedNothing},
	OpCancel:       {name: "cancel", right: NeedNothing, fields: fNo},
	OpPing:         {name: "ping", right: NeedNothing, readOnly: true},
	OpGet:          {name: "get", right: NeedRead, readOnly: true, fields: fKey},
	OpSet:          {name: "set", right: NeedWrite, keepsValue: true, fields: fNumber | fKey | fValue | fTTL | fLease},
	OpWait:         {name: "wait", right: NeedReads, waits: true, readOnly: true, fields: fTimeout | fKeys},
	OpAdd:          {name: "add", right: NeedWrite, fields: fNumber | fKey | fAdd | fOptionalTTL},
	OpSwap:         {name: "swap", right: NeedWrite, keepsValue: true, fields: fNumber | fKey | fValue | fExpect | fOptionalTTL},
	OpAppend:       {name: "append", right: NeedWrite, fields: fNumber | fKey | fValue | fOptionalTTL},
	OpDelete:       {name: "delete", right: NeedWrites, fields: fNumber | fKeys},
	OpList:         {name: "list", right: NeedBelow, readOnly: true, fields: fKey | fKeys | fLimit},
	OpWatch:        {name: "watch", right: NeedBelow, waits: true, readOnly: true, fields: fTimeout | fKey | fAfter},
	OpJoin:         {name: "join", right: NeedJoin, waits: true, keepsValue: true, fields: fTimeout | fValue | fClaim | fAttempt | fMember | fForm},
	OpLeave:        {name: "leave", right: NeedNothing, fields: fNumber | fMember | fNo},
	OpFollow:       {name: "follow", right: NeedNothing, waits: true, readOnly: true, fields: fTimeout | fMember},
	OpCollect:      {name: "collect", right: NeedNothing, waits: true, keepsValue: true, fields: fTimeout | fValue | fMember | fCall | fVote | fStall | fNo},
	OpSend:         {name: "send", right: NeedNothing, keepsValue: true, fields: fNumber | fValue | fTTL | fMember | fCall},
	OpRecv:         {name: "recv", right: NeedNothing, waits: true, fields: fTimeout | fMember | fCall},
	OpExpired:      {name: "expired", right: NeedNothing, fields: fNumber | fMember},
	OpLost:         {name: "lost", fields: fTTL | fValue},
	OpSendReady:    {name: "send ready", right: NeedNothing, waits: true, fields: fTimeout | fLength | fMember | fCall},
	OpGrant:        {name: "lease", right: NeedAnything, fields: fNumber | fTTL},
	OpKeepAlive:    {name: "keep alive", right: NeedAnything, fields: fLease},
	OpRevoke:       {name: "revoke", right: NeedAnything, fields: fNumber | fLease},
	OpSkip:         {name: "skip", right: NeedNothing, fields: fNumber},
	OpProbe:        {name: "probe", right: NeedNothing},
	OpProof:        {name: "proof", right: NeedNothing, fields: fValue},
	OpBackup:       {name: "backup", fields: fOffset},
	OpRelay:        {name: "relay", right: NeedNothing},
	OpVotes:        {name: "votes", right: NeedNothing},
	OpStatus:       {name: "status", right: NeedBelow, fields: fKey | fPlace},
	OpPush:         {name: "push", right: NeedWrite, keepsValue: true, fields: fNumber | fKey | fValue},
	OpPop:          {name: "pop", right: NeedWrite, fields: fNumber | fKey},
	OpCloseChannel: {name: "close channel", right: NeedNothing, fields: fNumber | fMember | fCall},
	OpAck:          {name: "acknowledge", right: NeedNothing, fields: fMember | fCall},
	OpStacks:       {name: "stacks", fields: fValue | fPlace},
	OpMembers:      {name: "members", right: NeedNothing, readOnly: true, fields: fFirst | fCount | fMember},
	OpProgress:     {name: "progress", right: NeedNothing, fields: fMember | fPhase},
	OpStalled:      {name: "stalled", keepsValue: true, fields: fValue},
}

// info returns the row of o; an unknown operation has none of the properties.
func (o Op) info() *opInfo {
	if o < opEnd {
		return &ops[o]
	}
	return &ops[0]
}

func (o Op) String() string {
	if name := o.info().name; name != "" {
		return name
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Right returns the right that a client needs for o.
func (o Op) Right() Right { return o.info().right }

// Waits reports whether the answer to o may take as long as its caller allows. A client sends a
// waiting call again after a reconnect, under the same id: it changes nothing, or is a vote, which
// counts once.
func (o Op) Waits() bool { return o.info().waits }

// Numbered reports whether o changes state each time it is carried out. It never waits. A session
// numbers such requests, and the store carries out each number once.
func (o Op) Numbered() bool { return o.info().fields&fNumber != 0 }

// ReadOnly reports whether o changes no state, so that a store does not log it.
func (o Op) ReadOnly() bool { return o.info().readOnly }

// KeepsValue reports whether an engine keeps the Value of requests for o. Their caller must not
// modify or reuse that Value.
func (o Op) KeepsValue() bool { return o.info().keepsValue }

// HasKey reports whether requests for o have a key or a prefix.
func (o Op) HasKey() bool { return o.info().fields&fKey != 0 }

// HasKeys reports whether requests for o have a list of keys.
func (o Op) HasKeys() bool { return o.info().fields&fKeys != 0 }

// ByMember reports whether o is called in the name of a rank that has joined a group. (So is OpJoin
// if it shrinks a group.)
func (o Op) ByMember() bool { return o.info().fields&(fMember|fForm) == fMember }
