// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"slices"
)

// Survey is what is known of several hosts, and of the network between them.
type Survey struct {
	Hosts []Answered `json:"hosts"`
	Links []Link     `json:"links"` // each host to each other one
	Rates []Rate     `json:"rates"` // of some pairs
	Port  int        `json:"port"`  // of rank 0
	// Dir is the directory that all hosts should share, "" if nobody asked; Maker is the host
	// that made a file there, and Unseen are those that do not see it.
	Dir    string `json:"dir,omitempty"`
	Maker  int    `json:"maker,omitempty"`
	Unseen []int  `json:"unseen,omitempty"`
}

// Answered is what a host has answered.
type Answered struct {
	Name    string `json:"name"`            // by which the user calls it
	Alias   bool   `json:"alias,omitempty"` // the name is of ssh's configuration, and no host looks it up
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"` // why there is no answer
	Facts   *Facts `json:"facts,omitempty"`
	// Ahead is by how many milliseconds its clock is ahead of that of who asks, give or take
	// Unsure.
	Ahead  float64 `json:"clock_ahead_ms"`
	Unsure float64 `json:"clock_unsure_ms"`
}

// Link is a connection from one host to another.
type Link struct {
	From int `json:"from"`
	To   int `json:"to"`
	Reached
}

// Rate is how fast data goes from one host to another.
type Rate struct {
	From      int     `json:"from"`
	To        int     `json:"to"`
	BytesPerS float64 `json:"bytes_per_s"`
}

// good are the hosts that have answered.
func (s *Survey) good() (out []int) {
	for i := range s.Hosts {
		if s.Hosts[i].Facts != nil && s.Hosts[i].Error == "" {
			out = append(out, i)
		}
	}
	return out
}

// addr is the address by which others reach a host, or an address of it; invalid if there
// is none.
func (s *Survey) addr(host int) netip.Addr {
	for i := range s.Links {
		if l := &s.Links[i]; l.To == host && l.Kind == OK {
			return l.Addr
		}
	}
	if f := s.Hosts[host].Facts; f != nil {
		return f.address()
	}
	return netip.Addr{}
}

// device is the name of the interface that has an address, "" if there is none.
func (f *Facts) device(a netip.Addr) string {
	for _, i := range f.Interfaces {
		if slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return i.Name
		}
	}
	return ""
}

// JudgeHosts returns the findings of several hosts: those of each, and those between them.
func JudgeHosts(s *Survey) (out []Finding) {
	for _, i := range s.good() {
		for _, f := range Judge(s.Hosts[i].Facts) {
			f.Hosts = []string{s.Hosts[i].Name}
			out = append(out, f)
		}
	}
	for _, c := range Checks() {
		if c.hosts != nil {
			out = append(out, c.complete(c.hosts(s))...)
		}
	}
	out = fold(out)
	sortFindings(out)
	return out
}

// median returns the middle of some values, 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[len(v)/2]
}
