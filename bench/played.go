package main

import (
	"bufio"
	"fmt"
	"io"
	"net"

	"github.com/muster-pg/muster/wire"
)

// Played hosts say to a store what ranks would, and do nothing else: it costs as little as it can to have them on the same machine.

// played is a connection of a played host: of one of its ranks, or of its relay.
type played struct {
	net.Conn
	in    *bufio.Reader
	seats []wire.Contribution // of one rank, or of all
	trunk bool
	out   []byte
}

// dialPlayed connects, and opens a session; a relay opens one for each of seats, which are from first on.
func dialPlayed(addr string, first, end, size int, trunk bool) (*played, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &played{Conn: c, in: bufio.NewReaderSize(c, 64<<10), trunk: trunk}
	for rank := first; rank < end; rank++ {
		p.seats = append(p.seats, wire.Contribution{Group: "crowd", Rank: rank, Size: size, Root: -1, Verb: "barrier", Want: wire.WantNothing})
	}
	p.out = wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello})
	if err := p.flush(); err != nil {
		return nil, err
	}
	if _, err := p.answers(wire.OpHello, 1); err != nil || !trunk {
		return p, err
	}
	p.say(func(int) wire.Request { return wire.Request{Op: wire.OpHello} })
	if err := p.flush(); err != nil {
		return nil, err
	}
	_, err = p.answers(wire.OpHello, len(p.seats))
	return p, err
}

// say queues a request for each seat.
func (p *played) say(request func(i int) wire.Request) {
	for i := range p.seats {
		req := request(i)
		if p.trunk {
			p.out = wire.AppendBranchRequest(p.out, uint32(i+1), &req)
		} else {
			p.out = wire.AppendRequest(p.out, &req)
		}
	}
}

func (p *played) flush() error {
	_, err := p.Write(p.out)
	p.out = p.out[:0]
	return err
}

// answers reads until there are n answers to op, and returns the last one. The store may ask meanwhile whether anybody is there.
func (p *played) answers(op wire.Op, n int) (rep wire.Reply, err error) {
	var calls []wire.BranchCall
	head := make([]byte, wire.HeaderLen)
	for n > 0 {
		if _, err := io.ReadFull(p.in, head); err != nil {
			return rep, err
		}
		h, err := wire.ParseHeader(head, wire.MaxReply)
		if err != nil {
			return rep, err
		}
		var body []byte
		if h.Len > 0 {
			body = make([]byte, h.Len)
			if _, err := io.ReadFull(p.in, body); err != nil {
				return rep, err
			}
		}
		got := 1
		if h.Op == wire.OpBranch {
			if calls, h, body, err = wire.ParseBranch(h, body, calls, wire.MaxReply); err != nil {
				return rep, err
			}
			got = len(calls)
		}
		switch {
		case h.Op == wire.OpProbe && p.trunk && len(calls) > 0:
			p.out = wire.AppendRequest(wire.AppendBranch(p.out, 0, calls...), &wire.Request{Op: wire.OpProbe})
			fallthrough
		case h.Op == wire.OpProbe:
			p.out = wire.AppendRequest(p.out, &wire.Request{Op: wire.OpProbe})
			if err := p.flush(); err != nil {
				return rep, err
			}
			continue
		case h.Op != op || h.Code != wire.CodeOK:
			return rep, fmt.Errorf("the answer to %s is %s to %s", op, h.Code, h.Op)
		}
		n -= got
		if err := rep.Parse(h, body); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

func (p *played) sayJoin() error {
	p.say(func(i int) wire.Request {
		return wire.Request{Op: wire.OpJoin, ID: 1, Group: p.seats[i], Value: []byte(net.IPv4zero)}
	})
	return p.flush()
}

func (p *played) joined() error {
	rep, err := p.answers(wire.OpJoin, len(p.seats))
	for i := range p.seats {
		p.seats[i].Generation = rep.Rev
	}
	return err
}

// vote says the votes of all seats for their next barrier.
func (p *played) vote() error {
	if !p.trunk {
		p.seats[0].Seq++
		p.out = wire.AppendRequest(p.out, &wire.Request{Op: wire.OpCollect, ID: 1 + p.seats[0].Seq, Group: p.seats[0], Value: []byte{}})
		return p.flush()
	}
	var votes []byte
	for i := range p.seats {
		c := &p.seats[i]
		c.Seq++
		votes = wire.AppendVote(votes, &wire.Vote{BranchCall: wire.BranchCall{Branch: uint32(i + 1), ID: 1 + c.Seq}, Rank: c.Rank, Want: c.Want, Value: []byte{}})
	}
	p.out = wire.AppendVotes(p.out, &p.seats[0], len(p.seats), votes)
	return p.flush()
}

// bePlayed is the role of a played host: played KIND ADDR FIRST END SIZE; KIND is direct or relay.
func bePlayed(args []string) error {
	first, end, size, err := threeNumbers(args[2:])
	if err != nil {
		return err
	}
	trunk := args[0] == "relay"
	each := 1 // seats of a connection
	if trunk {
		each = end - first
	}
	var ps []*played
	for ; first < end; first += each {
		p, err := dialPlayed(args[1], first, first+each, size, trunk)
		if err != nil {
			return err
		}
		ps = append(ps, p)
	}
	all := func(do func(p *played) error) error {
		for _, p := range ps {
			if err := do(p); err != nil {
				return err
			}
		}
		return nil
	}
	return answerLaps(func() error {
		if err := all((*played).sayJoin); err != nil {
			return err
		}
		return all((*played).joined)
	}, func(laps int) error {
		for range laps {
			if err := all((*played).vote); err != nil {
				return err
			}
			if err := all(func(p *played) error { _, err := p.answers(wire.OpCollect, len(p.seats)); return err }); err != nil {
				return err
			}
		}
		return nil
	})
}
