// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Timing holds the times of a rendezvous. The zero value cannot be used; start from
// [DefaultTiming].
type Timing struct {
	Join     time.Duration // how long a job waits for the least number of nodes
	LastCall time.Duration // how long it then waits for more nodes
	Close    time.Duration // how long a node waits at the end for nodes that have not read the end
	Beat     time.Duration // heartbeat: the time between two writes of a card
	Misses   int           // how many heartbeats a node may miss before it is lost
	Read     time.Duration // how long the store may be out of reach
	Call     time.Duration // how long the store may take to answer
}

// DefaultTiming returns the default times. With them, the job goes on about four seconds
// after a node has come or gone.
func DefaultTiming() Timing {
	return Timing{Join: 10 * time.Minute, LastCall: time.Second, Close: 5 * time.Second, Beat: 500 * time.Millisecond, Misses: 5, Read: time.Minute, Call: time.Second}
}

// FixedMisses is Misses for a job with a fixed number of nodes. Such a job cannot go on
// without a silent node, so the node may be silent for longer.
const FixedMisses = 30

// Lost is how long a card may stay unchanged before its node is lost.
func (t Timing) Lost() time.Duration { return t.Beat * time.Duration(t.Misses) }

// Fence is how long the ranks of a node that cannot write its card may run.
func (t Timing) Fence() time.Duration { return t.Lost() * 7 / 10 }

// Configure sets times from torchrun's --rdzv-conf, and removes the keys that it knows from
// the map.
func (t *Timing) Configure(conf map[string]string) error {
	for _, c := range []struct {
		key string
		to  *time.Duration
	}{
		{"join_timeout", &t.Join}, {"timeout", &t.Join}, {"last_call_timeout", &t.LastCall}, {"close_timeout", &t.Close},
		{"keep_alive_interval", &t.Beat}, {"heartbeat_timeout", &t.Call}, {"read_timeout", &t.Read},
	} {
		text, ok := conf[c.key]
		if !ok {
			continue
		}
		seconds, err := envvar.ParseFloat(text)
		if err != nil || !(seconds >= 0.01) && c.key != "last_call_timeout" || !(seconds >= 0) || seconds > 1e6 {
			return fmt.Errorf("%s=%s: give seconds, 0.01 or more", c.key, text)
		}
		*c.to = time.Duration(seconds * float64(time.Second))
		delete(conf, c.key)
	}
	if text, ok := conf["keep_alive_max_attempt"]; ok {
		n, err := envvar.ParseInt(text)
		if err != nil || n < 2 || n > 1000 {
			return fmt.Errorf("keep_alive_max_attempt=%s: give 2 to 1000 beats that may be missed", text)
		}
		t.Misses = n
		delete(conf, "keep_alive_max_attempt")
	}
	// An answer that comes later than a node is given up is of no use.
	t.Call = min(t.Call, t.Lost()/2)
	return nil
}
