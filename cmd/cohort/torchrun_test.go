// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
)

// configOf is what a command line of cohort run asks for.
func configOf(args ...string) (f *runFlags, cfg launch.Config, notices []string, err error) {
	f = &runFlags{}
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.add(set)
	if err = set.Parse(args); err == nil {
		cfg, notices, err = f.config(set)
	}
	return f, cfg, notices, err
}

// TestTorchrunFlags compares the flags with those of torchrun's own parser
// (testdata/torchrun_flags.py): names, both spellings, letters, variables, defaults.
func TestTorchrunFlags(t *testing.T) {
	var golden struct {
		Torch string
		Flags []struct {
			Names   []string
			PET     string
			Bool    bool
			Default any
			Type    string
		}
	}
	b, err := os.ReadFile("testdata/torchrun_flags.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	// Defaults that differ, and why.
	differs := map[string]string{
		"master-port":              "0",                                // a free port instead of 29500, which may be taken
		"shutdown-timeout":         "30",                               // what torchrun makes of none
		"duplicate-stdout-filters": "", "duplicate-stderr-filters": "", // [] there
		"local-addr": "", "log-dir": "", "logs-specs": "", "numa-binding": "", "print-completion": "", // None there
	}
	var f runFlags
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.add(set)
	for _, g := range golden.Flags {
		name := strings.TrimPrefix(g.Names[len(g.Names)-1], "--")
		for _, spelled := range g.Names {
			var flag *pflag.Flag
			if long, ok := strings.CutPrefix(spelled, "--"); ok {
				flag = set.Lookup(long)
			} else {
				flag = set.ShorthandLookup(spelled[1:])
			}
			if flag == nil || flag != set.Lookup(name) {
				t.Errorf("there is no %s", spelled)
			}
		}
		flag := set.Lookup(name)
		if flag == nil {
			continue
		}
		if isBool := flag.Value.Type() == "bool"; isBool != g.Bool {
			t.Errorf("--%s: takes no value %v, in torchrun %v", name, isBool, g.Bool)
		}
		want, isText := g.Default.(string)
		if v, isBool := g.Default.(bool); isBool {
			want, isText = map[bool]string{true: "true", false: "false"}[v], true
		}
		if other, ok := differs[flag.Name]; ok {
			want, isText = other, true
		}
		if !isText || flag.DefValue != want {
			t.Errorf("--%s has default %q, in torchrun %v", flag.Name, flag.DefValue, g.Default)
		}
		if hasPET := !slices.Contains(notPET, flag.Name); hasPET != (g.PET != "") || hasPET && string(envvar.PET(flag.Name)) != g.PET {
			t.Errorf("--%s takes its default from %s (%v), in torchrun %q", flag.Name, envvar.PET(flag.Name), hasPET, g.PET)
		}
	}
	if len(golden.Flags) < 30 {
		t.Errorf("only %d flags of torchrun %s", len(golden.Flags), golden.Torch)
	}
}

// TestTorchrunMeaning: what each flag, and each variable, does. Every row is
// tried with dashes, with underscores, and by the variable.
func TestTorchrunMeaning(t *testing.T) {
	terms := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1}
	tests := []struct {
		flag, value string // no value: a flag that takes none
		get         func(*runFlags, launch.Config) any
		want        any
	}{
		{"nproc-per-node", "3", func(_ *runFlags, c launch.Config) any { return c.NumRanks }, 3},
		{"nproc-per-node", "cpu", func(_ *runFlags, c launch.Config) any { return c.NumRanks }, runtime.NumCPU()},
		{"nproc-per-node", "auto", func(_ *runFlags, c launch.Config) any { return c.NumRanks > 0 }, true},
		{"nnodes", "1", func(f *runFlags, _ launch.Config) any { return [2]int{f.minNodes, f.maxNodes} }, [2]int{1, 1}},
		{"nnodes", "1:1", func(f *runFlags, _ launch.Config) any { return [2]int{f.minNodes, f.maxNodes} }, [2]int{1, 1}},
		{"node-rank", "0", func(f *runFlags, _ launch.Config) any { return int(f.nodeRank) }, 0},
		{"rdzv-backend", "c10d", func(f *runFlags, c launch.Config) any { return f.backend }, "c10d"},
		{"rdzv-endpoint", "localhost:29511", func(_ *runFlags, c launch.Config) any { return c.MasterPort }, 29511},
		{"rdzv-id", "job7", func(_ *runFlags, c launch.Config) any { return c.RunID }, "job7"},
		{"rdzv-conf", "join_timeout=3,x=a=b", func(f *runFlags, _ launch.Config) any { return f.rdzvConf }, map[string]string{"join_timeout": "3", "x": "a=b"}},
		{"standalone", "", func(_ *runFlags, c launch.Config) any { return len(c.RunID) }, 26},
		{"max-restarts", "4", func(_ *runFlags, c launch.Config) any { return c.MaxRestarts }, 4},
		{"monitor-interval", "0.5", func(f *runFlags, _ launch.Config) any { return float64(f.interval) }, 0.5},
		{"start-method", "forkserver", func(f *runFlags, _ launch.Config) any { return f.startMethod }, "forkserver"},
		{"event-log-handler", "null", func(f *runFlags, _ launch.Config) any { return f.events }, "null"},
		{"role", "actor", func(_ *runFlags, c launch.Config) any { return c.Role }, "actor"},
		{"module", "", func(_ *runFlags, c launch.Config) any { return c.Module }, true},
		{"no-python", "", func(_ *runFlags, c launch.Config) any { return c.Direct }, true},
		{"run-path", "", func(_ *runFlags, c launch.Config) any { return c.Script }, true},
		{"log-dir", "/dev/null", func(_ *runFlags, c launch.Config) any { return c.Logs.Dir }, "/dev/null"},
		{"redirects", "3", func(_ *runFlags, c launch.Config) any { return c.Logs.Redirects.Of(5) }, launch.Stdout | launch.Stderr},
		{"redirects", "0:1", func(_ *runFlags, c launch.Config) any { return c.Logs.Redirects }, launch.RankStreams{0: launch.Stdout}},
		{"tee", "2", func(_ *runFlags, c launch.Config) any { return c.Logs.Tee.Of(0) }, launch.Stderr},
		{"local-ranks-filter", "0", func(_ *runFlags, c launch.Config) any { return c.Logs.LocalRanks }, []int{0}},
		{"log-line-prefix-template", "${rank}: ", func(_ *runFlags, c launch.Config) any { return c.Logs.Prefix }, "${rank}: "},
		{"duplicate-stdout-filters", "apple,a,,b", func(_ *runFlags, c launch.Config) any { return c.Logs.StdoutFilters }, []string{"apple", "a,b"}},
		{"duplicate-stderr-filters", "pear", func(_ *runFlags, c launch.Config) any { return c.Logs.StderrFilters }, []string{"pear"}},
		{"master-addr", "127.0.0.4", func(_ *runFlags, c launch.Config) any { return c.MasterAddr }, "127.0.0.4"},
		{"master-port", "29533", func(_ *runFlags, c launch.Config) any { return c.MasterPort }, 29533},
		{"master-port", " 0_29533\r", func(_ *runFlags, c launch.Config) any { return c.MasterPort }, 29533},
		{"nproc-per-node", " 2\r", func(_ *runFlags, c launch.Config) any { return c.NumRanks }, 2},
		{"nproc-per-node", "\u0662", func(_ *runFlags, c launch.Config) any { return c.NumRanks }, 2},
		{"nproc-per-node", " cpu ", func(_ *runFlags, c launch.Config) any { return c.NumRanks }, runtime.NumCPU()},
		{"nnodes", " 01 : +1", func(f *runFlags, _ launch.Config) any { return [2]int{f.minNodes, f.maxNodes} }, [2]int{1, 1}},
		{"max-restarts", "010", func(_ *runFlags, c launch.Config) any { return c.MaxRestarts }, 10},
		{"monitor-interval", " 1_0.5 ", func(f *runFlags, _ launch.Config) any { return float64(f.interval) }, 10.5},
		{"rdzv-endpoint", " localhost: 29511 ", func(_ *runFlags, c launch.Config) any { return c.MasterPort }, 29511},
		{"local-ranks-filter", " 0, 0_0", func(_ *runFlags, c launch.Config) any { return c.Logs.LocalRanks }, []int{0, 0}},
		{"redirects", " 3 ", func(_ *runFlags, c launch.Config) any { return c.Logs.Redirects.Of(5) }, launch.Stdout | launch.Stderr},
		{"local-addr", "127.0.0.5", func(f *runFlags, _ launch.Config) any { return f.localAddr }, "127.0.0.5"},
		{"signals-to-handle", "SIGTERM,SIGUSR1", func(_ *runFlags, c launch.Config) any { return c.Signals }, terms},
		{"shutdown-timeout", "7", func(_ *runFlags, c launch.Config) any { return c.Grace }, 7 * time.Second},
		{"shutdown-timeout", "0", func(_ *runFlags, c launch.Config) any { return c.Grace }, time.Duration(1)},
		{"virtual-local-rank", "", func(_ *runFlags, c launch.Config) any { return c.VirtualLocalRank }, true},
	}
	done := map[string]bool{}
	for _, tt := range tests {
		done[tt.flag] = true
		check := func(how string, f *runFlags, cfg launch.Config, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", how, err)
			} else if got := tt.get(f, cfg); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %v, want %v", how, got, tt.want)
			}
		}
		for _, name := range []string{tt.flag, strings.ReplaceAll(tt.flag, "-", "_")} {
			arg := "--" + name
			if tt.value != "" {
				arg += "=" + tt.value
			}
			f, cfg, _, err := configOf(arg, "program")
			check(arg, f, cfg, err)
		}
		func() {
			pet, value := string(envvar.PET(tt.flag)), tt.value
			if value == "" {
				value = "1"
			}
			defer os.Unsetenv(pet)
			os.Setenv(pet, value)
			f, cfg, _, err := configOf("program")
			check(pet, f, cfg, err)
		}()
	}
	if _, cfg, _, err := configOf("--numa-binding", "core-complex", "program"); err != nil || cfg.Binding != launch.BindCoreComplex {
		t.Errorf("--numa-binding: %q, %v", cfg.Binding, err)
	}
	_, cfg, _, err := configOf("--program", "2:train.py --lr 0.1", "--program", "1:./rank", "--store", "rank0")
	want := []launch.Program{{Path: "train.py", Args: []string{"--lr", "0.1"}, NumRanks: 2}, {Path: "./rank", Args: []string{}, NumRanks: 1}}
	if err != nil || !reflect.DeepEqual(cfg.Programs, want) || cfg.NumRanks != 0 || cfg.AgentStore != launch.StoreByRank0 {
		t.Errorf("--program twice and --store rank0: %+v, %v, %v", cfg.Programs, cfg.AgentStore, err)
	}
	for args, want := range map[string]string{
		"run --program 2:x y":                  "--program and y contradict each other",
		"run --program 2:x --nproc-per-node 2": "--program and --nproc-per-node 2 contradict each other",
		"run --program x":                      "there is no number of ranks",
		"run --program 1:no-such-program":      "is not in PATH",
		"run --store me ./x":                   "--store me: give agent, rank0 or auto",
	} {
		code, _, errs := cohort(strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("cohort %s: exit code %d, %q, want %q", args, code, errs, want)
		}
	}
	// Every flag has its row.
	var f runFlags
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.add(set)
	set.VisitAll(func(flag *pflag.Flag) {
		if _, none := elsewhere[flag.Name]; !none && !done[flag.Name] && !slices.Contains(notPET, flag.Name) {
			t.Errorf("--%s is in no row", flag.Name)
		}
	})
}

// The command line counts, not the variable; letters have values of their own;
// what follows the program is the program's.
func TestTorchrunLines(t *testing.T) {
	t.Setenv("PET_NPROC_PER_NODE", "2")
	t.Setenv("PET_STANDALONE", " 0_0 ")
	t.Setenv("PET_VIRTUAL_LOCAL_RANK", "+2")
	t.Setenv("PET_ROLE", "actor")
	t.Setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9")
	t.Setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "from outside ")
	f, cfg, notices, err := configOf("--nproc_per_node", "5", "-r", "3", "-t0:1", "-m", "pkg.train", "--nproc-per-node", "7", "-r", "1")
	if err != nil || len(notices) != 0 {
		t.Fatal(err, notices)
	}
	if cfg.NumRanks != 5 || cfg.Role != "actor" || f.standalone || !cfg.VirtualLocalRank || !cfg.Module || cfg.Grace != 9*time.Second || cfg.Logs.Prefix != "from outside " ||
		!maps.Equal(cfg.Logs.Redirects, launch.RankStreams{launch.AllRanks: 3}) || !maps.Equal(cfg.Logs.Tee, launch.RankStreams{0: 1}) {
		t.Errorf("%+v", cfg)
	}
	if rest := f.set.Args(); !slices.Equal(rest, []string{"pkg.train", "--nproc-per-node", "7", "-r", "1"}) {
		t.Errorf("the program has %q", rest)
	}
	_, cfg, _, err = configOf("--shutdown-timeout", "4", "--log-line-prefix-template", "mine ", "x")
	if err != nil || cfg.Grace != 4*time.Second || cfg.Logs.Prefix != "mine " {
		t.Errorf("%v, %+v", err, cfg)
	}
}

// Flags that torchrun takes and that have no effect are told of, and work.
func TestTorchrunNotices(t *testing.T) {
	for args, want := range map[string][]string{
		"--standalone --rdzv-backend c10d x":                                                                       nil,
		"--standalone --rdzv-endpoint far:1 --master_port 1 x":                                                     {"--rdzv-endpoint far:1 has no effect beside --standalone", "--master-port 1 has no effect beside --standalone"},
		"--rdzv-backend c10d --node-rank 3 x":                                                                      {"--node-rank 3 has no effect beside --rdzv-backend c10d: it is for static"},
		"--nproc-per-node 2 --redirects 0:3,2:1 --tee 1:1 x":                                                       {"--redirects 0:3,2:1 names local rank 2: this machine has 0 to 1"},
		"--standalone --rdzv-conf timeout=3 --local-addr 127.0.0.1 x":                                              {"--rdzv-conf timeout=3 has no effect beside --standalone"},
		"--local-addr 127.0.0.2 --rdzv-conf timeout=3 x":                                                           {"--rdzv-conf timeout=3 has no effect on one machine, which meets no other", "--local-addr 127.0.0.2 has no effect with --rdzv-backend static and one machine: --master-addr says where rank 0 listens"},
		"--rdzv-backend c10d --rdzv-endpoint localhost --local-addr ::1 x":                                         {"--rdzv-endpoint localhost has no effect on one machine, which meets no other"},
		"--run-path --no-python x":                                                                                 {"--no-python has no effect beside --run-path"},
		"--monitor-interval 5 --start-method fork x":                                                               {"--start-method fork has no effect here: every rank is a new process", "--monitor-interval 5 has no effect here: the end of a rank is seen at once"},
		"--monitor-interval 0.1 --start-method spawn --event-log-handler null --redirects 0 --log-dir /dev/null x": nil,
		"--log-dir /dev/null -r 1 --tee 3 --duplicate-stdout-filters a x": {"--redirects 1 has no effect beside --log-dir /dev/null, which keeps no files", "--tee 3 has no effect beside --log-dir /dev/null, which keeps no files",
			"--duplicate-stdout-filters a has no effect beside --log-dir /dev/null, which keeps no files"},
		"--duplicate-stdout-filters a --duplicate-stderr-filters b --tee 2 x":              {"--duplicate-stdout-filters a has no effect without --tee of that stream"},
		"--program 2:x --program 1:y --local-ranks-filter 2 --tee 0:1,3:1 --redirects 2:3": {"--tee 0:1,3:1 names local rank 3: this machine has 0 to 2"},
		"--nproc-per-node 2 --local-ranks-filter 0,5 --redirects 3  x":                     {"--local-ranks-filter 0,5 names local rank 5: this machine has 0 to 1"},
	} {
		if _, _, notices, err := configOf(strings.Fields(args)...); err != nil || !slices.Equal(notices, want) {
			t.Errorf("%s: %v, %q, want %q", args, err, notices, want)
		}
	}
}

// Variables that make no sense are named.
func TestTorchrunBadVariables(t *testing.T) {
	for kv, want := range map[string]string{
		"PET_MASTER_PORT=0x7":               `environment variable PET_MASTER_PORT is "0x7", which is not a value of --master-port: want an integer`,
		"PET_STANDALONE=yes":                "environment variable PET_STANDALONE is \"yes\": want 0 or 1",
		"PET_MAX_RESTARTS=many":             `environment variable PET_MAX_RESTARTS is "many", which is not a value of --max-restarts`,
		"PET_NNODES=0":                      "PET_NNODES=0: give the number of machines",
		"PET_NODE_RANK=2":                   "PET_NODE_RANK=2 and --nnodes 1:1 contradict each other",
		"PET_NPROC_PER_NODE=two":            "PET_NPROC_PER_NODE=two: give a number",
		"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=ab": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=ab: give a number of seconds",
	} {
		k, v, _ := strings.Cut(kv, "=")
		func() {
			defer os.Unsetenv(k)
			os.Setenv(k, v)
			if _, _, _, err := configOf("program"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", kv, err, want)
			}
		}()
	}
}
