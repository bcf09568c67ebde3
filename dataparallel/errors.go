package dataparallel

import (
	"errors"
	"regexp"
	"strings"

	"github.com/muster-pg/muster/pgroup"
)

// A call of a Strategy is several verbs of package collective. Its errors name the call and hide these
// verbs.

// These describe, at the store, the verb in which ranks compare their calls.
const (
	agreementVerb  = "collective.allgather"
	agreementLabel = "2 U64"
)

// agreement matches this verb in errors of package collective.
var agreement = regexp.MustCompile(`allgather #\d+ of ` + agreementLabel)

// named returns err, the error of a verb that op has called, as an error of op.
func (s *Strategy) named(op string, err error) error {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || re.Failure == nil || strings.HasPrefix(re.Op, "dataparallel.") {
		return err
	}
	own, v := *re, *re.Failure
	own.Op, own.Seq, own.Channel, own.Failure, own.Err = "dataparallel."+op, s.seq, "", &v, err
	v.Clash = nil
	for _, c := range re.Clash {
		if c.Verb == agreementVerb && c.Label == agreementLabel {
			c.Verb, c.Type, c.Label = "dataparallel", "", ""
			if c.Rank == s.Rank() {
				c.Verb += "." + op
			}
		}
		v.Clash = append(v.Clash, c)
	}
	v.Doing = nil
	for _, doing := range re.Doing {
		v.Doing = append(v.Doing, strings.ReplaceAll(doing, agreementVerb, "a call of dataparallel"))
	}
	v.Reason = agreement.ReplaceAllString(v.Reason, "a call of dataparallel")
	return &own
}
