// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Timing is how long things may take. The zero value is no use; see [DefaultTiming].
type Timing struct {
	Join     time.Duration // how long a job may wait for the least number of nodes
	LastCall time.Duration // how long it waits for more of them when these are there
	Close    time.Duration // how long the end may wait for those who have not heard of it
	Beat     time.Duration // between two writes of a card
	Misses   int           // beats without which a node is lost
	Read     time.Duration // how long the store may be out of reach
	Call     time.Duration // how long it may take to answer
}

// DefaultTiming absorbs a change within about four seconds.
func DefaultTiming() Timing {
	return Timing{Join: 10 * time.Minute, LastCall: time.Second, Close: 5 * time.Second, Beat: 500 * time.Millisecond, Misses: 5, Read: time.Minute, Call: time.Second}
}

// FixedMisses is Misses for a job of one number of nodes: nobody can go on without
// one that is silent, so that it may be silent for longer.
const FixedMisses = 30

// Lost is how long a card stands still before its node is given up.
func (t Timing) Lost() time.Duration { return t.Beat * time.Duration(t.Misses) }

// Fence is how long a node that cannot write its card lets its ranks live.
func (t Timing) Fence() time.Duration { return t.Lost() * 7 / 10 }

// Configure changes times by torchrun's --rdzv-conf. What it does not know it
// leaves in the map.
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
