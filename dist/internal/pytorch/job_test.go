// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// set is an option of dist.Init.
type set func(*backend.Settings)

func at(text string) set { return func(s *backend.Settings) { s.URL = text } }

func rank(rank, size int) set {
	return func(s *backend.Settings) { s.Rank, s.WorldSize = rank, size }
}

func TestGlooPlace(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  string // NAME=value, separated by spaces
		opts []set
		want place
		err  string
	}{
		{"environment", "RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500", nil,
			place{rank: 1, worldSize: 3, addr: "10.0.0.1:29500"}, ""},
		{"agent", "RANK=0 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True", nil,
			place{worldSize: 3, addr: "h:29500", agent: true}, ""},
		{"agent of another store", "MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True", []set{at("tcp://h:29501?rank=0&world_size=2")},
			place{worldSize: 2, addr: "h:29501"}, ""},
		{"query over environment", "RANK=1 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500", []set{at("env://?rank=2")},
			place{rank: 2, worldSize: 3, addr: "h:29500"}, ""},
		{"tcp and rank", "", []set{at("tcp://[::1]:2"), rank(1, 2)}, place{rank: 1, worldSize: 2, addr: "[::1]:2"}, ""},
		{"libuv is a matter of the server's", "", []set{at("tcp://h:2?use_libuv=0"), rank(1, 2)}, place{rank: 1, worldSize: 2, addr: "h:2"}, ""},
		{"file", "", []set{at("file:///tmp/x?rank=1&world_size=2")}, place{rank: 1, worldSize: 2, file: "/tmp/x"}, ""},
		{"both", "", []set{at("tcp://h:2?rank=1&world_size=2"), rank(1, 2)}, place{}, "both say who this rank is"},
		{"no size", "", []set{at("tcp://h:2?rank=1")}, place{}, "WORLD_SIZE is not set"},
		{"rank too large", "", []set{at("tcp://h:2?rank=2&world_size=2")}, place{}, "rank 2 of 2 ranks"},
		{"no master", "RANK=1 WORLD_SIZE=3", nil, place{}, "MASTER_ADDR"},
		{"relative file", "", []set{at("file://x?rank=1&world_size=2")}, place{}, "no absolute path"},
		{"scheme", "", []set{at("http://x?rank=1&world_size=2")}, place{}, `scheme "http"`},
		{"no port", "", []set{at("tcp://x?rank=1&world_size=2")}, place{}, "no host and port"},
		{"twice", "", []set{at("tcp://x:1?rank=1&rank=2&world_size=2")}, place{}, "more than once"},
		{"unknown", "", []set{at("tcp://x:1?size=2")}, place{}, `nothing is known of "size"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"} {
				t.Setenv(v, "")
			}
			for v := range strings.FieldsSeq(tc.env) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			var s backend.Settings
			for _, set := range tc.opts {
				set(&s)
			}
			got, err := findPlace(&s)
			if tc.err == "" && err == nil {
				if got != tc.want {
					t.Errorf("got %+v, want %+v", got, tc.want)
				}
			} else if tc.err == "" || err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, want an error with %q", err, tc.err)
			}
		})
	}
}

func TestPyTorchVersions(t *testing.T) {
	for version, want := range map[string]Release{
		"1.13": Release1_13, "1.13.1": Release1_13, "1.13.0a0": Release1_13, "1.13.1+cpu": Release1_13,
		"2": release2, "2.2": release2_2, "2.6.0a0+git123": 206, "2.15.0+cu132": 215,
		"": anyRelease, "1.12": anyRelease, "2.1": anyRelease, "2.0.1": anyRelease, "3.0": anyRelease, "1.130": anyRelease, "two": anyRelease,
	} {
		got, err := ParseRelease(version)
		if got != want || (err != nil) != (want == anyRelease) {
			t.Errorf("%q: got %v, %v, want %v", version, got, err, want)
		}
	}
}

// TestPyTorchNames compares names of groups with those that PyTorch's releases have
// given: 2.5.1, 2.6.0, 2.13.0 and 2.14.1. Of a group of ranks that all make, of the same
// ranks twice as one that its members make, of another that all make, and of one that its
// members make after that of the first has been closed.
func TestPyTorchNames(t *testing.T) {
	for _, tc := range []struct {
		release Release
		names   []string
	}{
		{205, []string{"0", "1", "e141ae2001c03c612892ea28caa026adcef1316b", "97883798be683597edaeda0ff7aad1e848511543", "2", "876fff33fefe4c99deb4ff8f5a8b197796b3e590"}},
		{206, []string{"0", "1", "1f107ed8277a8e00dc73bc450ff91a53f7b86416", "945843e1e47897cf38048c0589fbca87660b0866", "2", "314d52afdfcd20751b15898d4bddc3e3d96d0ef2"}},
		{213, []string{"0", "1", "1f107ed8277a8e00dc73bc450ff91a53f7b86416", "945843e1e47897cf38048c0589fbca87660b0866", "2", "314d52afdfcd20751b15898d4bddc3e3d96d0ef2"}},
		{214, []string{"0", "1", "1f107ed8277a8e00dc73bc450ff91a53f7b86416", "945843e1e47897cf38048c0589fbca87660b0866", "4", "0e50f7fe2f82f8b5f8eeca5cc60f8e1c8c6f850b"}},
	} {
		n := groupNames{may: namings(tc.release, tc.release)}
		for i, want := range tc.names {
			hashed := i == 2 || i == 3 || i == 5
			got := n.candidates([]int{0, 2}, hashed)
			n.count(hashed)
			if len(got) != 1 || got[0] != want {
				t.Errorf("%v: name %d is %q, want %q", tc.release, i, got, want)
			}
			n.enter(got[0])
			if i == 4 {
				delete(n.own, tc.names[1])
			}
		}
	}
}

func TestPyTorchKeys(t *testing.T) {
	for _, tc := range []struct {
		version     Release
		name        string
		gloo, group string
	}{
		{Release1_13, "0", "default_pg/0/", "default_pg/0/"},
		{Release1_13, "1", "default_pg/1/", "default_pg/1/"},
		{release2, "0", "default_pg/0//cpu//", "default_pg/0//"},
		{release2, "1", "default_pg/0//1//cpu//", "default_pg/0//1//"},
	} {
		gloo, group := glooPrefixes(tc.version, tc.name)
		if gloo, group = "default_pg/"+gloo+"/", "default_pg/"+group+"/"; gloo != tc.gloo || group != tc.group {
			t.Errorf("group %s of %v: got %q and %q, want %q and %q", tc.name, tc.version, gloo, group, tc.gloo, tc.group)
		}
	}
}

// TestPyTorchRefusals is from which version on Gloo was found to have what.
func TestPyTorchRefusals(t *testing.T) {
	const always, never Release = Release1_13, 1000
	all := []Release{Release1_13, release2_2, 203, 206, 207, 208, 209, 215, release2}
	for _, tc := range []struct {
		call  operation.Call
		since Release
	}{
		{operation.Call{Op: operation.AllReduce, DType: operation.Float32}, always},
		{operation.Call{Op: operation.AllReduce, DType: operation.Float32, Reduce: operation.Avg}, 208},
		{operation.Call{Op: operation.AllReduce, DType: operation.Int64, Reduce: operation.Avg}, never},
		{operation.Call{Op: operation.AllReduce, DType: operation.Int64, Reduce: operation.BXor}, always},
		{operation.Call{Op: operation.AllReduce, DType: operation.Float32, Reduce: operation.PremulSum(2)}, never},
		{operation.Call{Op: operation.AllReduce, DType: operation.BFloat16}, release2_2},
		{operation.Call{Op: operation.Broadcast, DType: operation.Bool}, release2_2},
		{operation.Call{Op: operation.Send, DType: operation.Bool}, always},
		{operation.Call{Op: operation.ReduceScatter, DType: operation.Float32}, 203},
		{operation.Call{Op: operation.ReduceScatter, DType: operation.Float32, Reduce: operation.Max}, 209},
		{operation.Call{Op: operation.ReduceScatter, DType: operation.Float32, Reduce: operation.Avg}, 209},
		{operation.Call{Op: operation.AllGather, DType: operation.Float32}, release2_2},
		{operation.Call{Op: operation.AllGather, DType: operation.Float32, Count: 1}, always},
		{operation.Call{Op: operation.AllGather, DType: operation.Float32, Parts: []int{1, 2}}, never},
		{operation.Call{Op: operation.AllToAll, DType: operation.Float32, Parts: []int{1, 2}}, always},
	} {
		for _, v := range all {
			if reason := v.refuses(&tc.call); (reason == "") != (v >= tc.since) {
				t.Errorf("%v beside %v: refused for %q, and it is there since %v", tc.call, v, reason, tc.since)
			}
		}
	}
}

// TestGlooAdmits: what a group's backend takes from elsewhere than this host is what
// WithAdmitted says, and not everything.
func TestGlooAdmits(t *testing.T) {
	j := &job{settings: &backend.Settings{Store: store.NewMemory()}, admitted: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")}}
	for _, version := range []Release{Release1_13, release2} {
		j.release = version
		admit := j.config(&backend.Spec{Name: backend.World, World: []int{0, 1}}, nil).Admit
		if admit == nil {
			t.Fatalf("%v: everybody may connect", version)
		}
		for addr, want := range map[string]bool{"127.0.0.1": true, "::1": true, "::ffff:203.0.113.7": true, "203.0.113.7": true, "203.0.113.200": false, "2001:db8::1": false} {
			if got := admit(netip.MustParseAddr(addr)); got != want {
				t.Errorf("%v: %s may connect: %t, want %t", version, addr, got, want)
			}
		}
	}
}

// TestGlooNodes: the hosts whose launchers belong to the job are let in, and no others.
func TestGlooNodes(t *testing.T) {
	t.Setenv("COHORT_NODE_ADDRS", "203.0.113.1,localhost,[2001:db8::2]")
	from, err := admittedNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j := &job{admitted: from}
	for addr, want := range map[string]bool{"203.0.113.1": true, "2001:db8::2": true, "203.0.113.2": false, "2001:db8::3": false} {
		if got := j.admitsFrom(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s may come: %t, want %t", addr, got, want)
		}
	}
	t.Setenv("COHORT_NODE_ADDRS", "")
	if from, err := admittedNodes(t.Context()); err != nil || len(from) > 0 {
		t.Errorf("without other nodes: %v, %v", from, err)
	}
}
