package strategy

import (
	"errors"
	"regexp"
	"strings"

	"github.com/muster-pg/muster/pgroup"
)

// A call here is several verbs of package collective. Its errors name the call, and none of those:
// which there are is no caller's concern.

// agreement is how the verb by which ranks compare their calls is described at the store.
const (
	agreementVerb  = "collective.allgather"
	agreementLabel = "2 U64"
)

// agreement is that verb as package collective describes it.
var agreement = regexp.MustCompile(`allgather #\d+ of ` + agreementLabel)

// named is the error of a verb that op has called, as one of op.
func (s *AllReduce) named(op string, err error) error {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || re.Failure == nil || strings.HasPrefix(re.Op, "strategy.") {
		return err
	}
	own, v := *re, *re.Failure
	own.Op, own.Seq, own.Channel, own.Failure, own.Err = "strategy."+op, s.seq, "", &v, err
	v.Clash = nil
	for _, c := range re.Clash {
		if c.Verb == agreementVerb && c.Label == agreementLabel {
			c.Verb, c.Type, c.Label = "strategy", "", ""
			if c.Rank == s.Rank() {
				c.Verb += "." + op
			}
		}
		v.Clash = append(v.Clash, c)
	}
	v.Doing = nil
	for _, doing := range re.Doing {
		v.Doing = append(v.Doing, strings.ReplaceAll(doing, agreementVerb, "a call of strategy"))
	}
	v.Reason = agreement.ReplaceAllString(v.Reason, "a call of strategy")
	return &own
}
