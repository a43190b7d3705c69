// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is the version of what the two ends say. Hosts with another one are refused.
const protocol = 2

// Limits of lines. A line of an agent is short; an order has an environment.
const (
	maxHello = 16 << 10
	maxOrder = 4 << 20
	maxNoise = 64 << 10 // what a login script may print before the agent begins
)

// greeting begins the first line of an agent. What comes before it is from login scripts.
const greeting = "cohort-host-agent "

// Silence is the time after which an agent that hears nothing ends its command: this host is
// gone, or stopped. The other end says something every [beat].
const (
	Silence = 5 * time.Minute
	beat    = 20 * time.Second
)

// Hello is what an agent says of its host.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`  // of Cohort
	Platform string `json:"platform"` // "linux/amd64"
	Sum      string `json:"sum"`      // SHA-256 of the agent's binary, in hexadecimal digits
	Host     string `json:"host"`     // what the machine calls itself
	Machine  string `json:"machine"`  // the same for two names of one machine
	Addr     string `json:"addr"`     // at which ssh has reached the machine
	Port     int    `json:"port"`     // a free port
	Dir      string `json:"dir"`      // the home directory
	Err      string `json:"error,omitempty"`
}

// Order says what an agent runs: a command of Cohort.
type Order struct {
	Args    []string `json:"args"`              // of cohort, as in run --nnodes 2 …
	Env     []string `json:"env,omitempty"`     // NAME=value, added to the environment
	Dir     string   `json:"dir,omitempty"`     // working directory
	Token   string   `json:"token,omitempty"`   // of the job
	Program string   `json:"program,omitempty"` // the path of a copied program, which is checked
	Sum     string   `json:"sum,omitempty"`     // its SHA-256
	End     string   `json:"end,omitempty"`     // begins the last line of the output, before the exit code
}

// control is a message of this end while the command runs; empty: a sign of life.
type control struct {
	Signal string `json:"signal,omitempty"` // for the command, such as SIGTERM
}

// parseHello reads the line of an agent behind the greeting.
func parseHello(line string) (h Hello, err error) {
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		return h, fmt.Errorf("its first line is no greeting: %w", err)
	}
	for _, text := range []string{h.Version, h.Platform, h.Sum, h.Host, h.Machine, h.Addr, h.Dir, h.Err} {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return h, errors.New("its greeting has control characters")
		}
	}
	if h.Port < 0 || h.Port > 65535 {
		return h, fmt.Errorf("its greeting has the port %d", h.Port)
	}
	return h, nil
}

// signalOf returns the signal of a control message.
func signalOf(name string) (syscall.Signal, error) {
	if s := unix.SignalNum(name); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("unknown signal %q", clip(name))
}
