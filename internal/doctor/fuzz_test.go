// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/devices"
)

// noNetwork is the network of a host that reaches nobody.
type noNetwork struct{}

func (noNetwork) Listen() (net.Listener, error) { return nil, errors.New("no network") }
func (noNetwork) Dial(context.Context, netip.AddrPort) (net.Conn, error) {
	return nil, errors.New("no network")
}
func (noNetwork) LookUp(_ context.Context, name string) Lookup { return Lookup{Name: name} }

// FuzzServe: whatever arrives on the standard input, a host answers line by line or ends.
func FuzzServe(f *testing.F) {
	for _, text := range []string{
		`{"do":"time"}`, `{"do":"facts","options":{"ranks":1}}`, `{"do":"facts"}`, `{"do":"rate","peer":3}`, `{"do":"make","name":"../x"}`,
		`{"do":"see","name":".cohort-doctor-a/../../etc/passwd"}`, `{"do":"reach","peers":[{"index":1,"addrs":["10.0.0.1"],"port":70000}],"large":[1,1]}`, `{"do":"end"}`, `x`,
	} {
		f.Add(text + "\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		host := Host{
			Version: "cohort v1", Network: noNetwork{},
			Collect: func(_ context.Context, o Options) *Facts {
				c := *healthy()
				c.Options = o
				c.Options.Dir = ""
				return &c
			},
			Now:     func() time.Time { return time.Unix(1, 0) },
			Measure: func(context.Context) (devices.Rates, error) { return devices.Rates{}, nil },
		}
		var out bytes.Buffer
		_ = host.Serve(t.Context(), strings.NewReader(text), &out)
		for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
			var a answer
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				t.Errorf("line %d: %q: %v", i, line, err)
			}
			if a.Seen {
				t.Errorf("a file was seen: %q", text)
			}
		}
	})
}

// FuzzSurvey: whatever hosts answer, it is judged without a panic.
func FuzzSurvey(f *testing.F) {
	one, err := json.Marshal(healthy())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(one), `[{"from":0,"to":1,"index":1,"kind":"ok","lookup":{"name":"b"}}]`)
	f.Add(`{"print":{}}`, `[{"from":1,"to":0,"index":0,"kind":"timed out"},{"from":0,"to":1,"kind":"ok","large":"x","micros":1e300}]`)
	f.Add(`{"print":{},"interfaces":[{"name":"e","addrs":["10.0.0.1/8"]}],"lookups":[{"own":true}],"disks":[{}],"gpus":[{}]}`, `[]`)
	f.Fuzz(func(t *testing.T, facts, links string) {
		s := &Survey{Hosts: []Answered{{Name: "a", Facts: healthy()}, {Name: "b"}, {Name: "c", Facts: healthy()}}}
		if json.Unmarshal([]byte(facts), &s.Hosts[1].Facts) != nil || s.Hosts[1].Facts != nil && s.Hosts[1].Facts.Print == nil {
			return // Examine refuses such a host
		}
		var all []Link
		if json.Unmarshal([]byte(links), &all) != nil {
			return
		}
		for _, l := range all {
			if l.From >= 0 && l.From < 3 && l.To >= 0 && l.To < 3 && l.From != l.To && s.Hosts[l.From].Facts != nil && s.Hosts[l.To].Facts != nil {
				s.Links = append(s.Links, l)
			}
		}
		for _, found := range JudgeHosts(s) {
			if found.Check == "" || found.Why == "" {
				t.Errorf("%+v", found)
			}
		}
	})
}

// FuzzTexts: the lists of nft and tc, and the lines of a log.
func FuzzTexts(f *testing.F) {
	f.Add("table inet filter {\n chain input {\n type filter hook input priority filter; policy accept;\n }\n}\n")
	f.Add("qdisc tbf 8001: dev eth0 root refcnt 2 rate 20Mbit\n")
	f.Add("chain x\n type filter hook output ")
	f.Add("torch.cuda.OutOfMemoryError: CUDA out of memory.")
	patterns := newSearch()
	f.Fuzz(func(t *testing.T, text string) {
		input, output := parseChains(text)
		for _, chain := range append(input, output...) {
			if strings.Contains(chain, "\n") {
				t.Errorf("chain %q", chain)
			}
		}
		for _, s := range parseShapers(text) {
			if len(strings.Fields(s)) != 2 {
				t.Errorf("shaper %q", s)
			}
		}
		for line := range bytes.Lines([]byte(text)) {
			patterns.trouble(line)
		}
	})
}

// FuzzReadLine: a line has an end, or a limit.
func FuzzReadLine(f *testing.F) {
	f.Add("a\nb")
	f.Fuzz(func(t *testing.T, text string) {
		r := bufio.NewReaderSize(strings.NewReader(text), 16)
		for {
			line, err := readLine(r)
			if len(line) > maxMessage {
				t.Fatalf("a line of %d bytes", len(line))
			}
			if err != nil {
				if err != io.EOF && !strings.Contains(err.Error(), "more than") {
					t.Fatal(err)
				}
				return
			}
		}
	})
}
