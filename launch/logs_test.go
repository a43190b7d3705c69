// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rolePrint prints known lines on both streams, the last without an end.
func rolePrint(string) int {
	fmt.Fprintf(os.Stdout, "apple %s\n10%%\r20%%\r\nplum %s", rank(), rank())
	fmt.Fprintf(os.Stderr, "pear %s\ntoken %s\n", rank(), os.Getenv("COHORT_TOKEN"))
	return 0
}

// tree returns the files below a directory with what is in them; directories without
// files are there with nothing. The part of a name that is random is covered.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		run, rest, _ := strings.Cut(name, "/")
		name = run[:strings.LastIndexByte(run, '_')] + "_*/" + rest
		if d.IsDir() {
			if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
				return err
			}
			out[name] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLogs(t *testing.T) {
	stars := strings.Repeat("*", 64)
	stdout := func(r int) string { return fmt.Sprintf("apple %d\n10%%\r20%%\r\nplum %d", r, r) }
	stderr := func(r int) string { return fmt.Sprintf("pear %d\ntoken %s\n", r, stars) }
	shown := func(prefix, text string) string {
		return prefix + strings.NewReplacer("\n", "\n"+prefix, "\r2", "\r"+prefix+"2").Replace(strings.TrimSuffix(text, "\n")) + "\n"
	}
	tests := []struct {
		name      string
		logs      Logs
		files     map[string]string // in RUN/attempt_0
		out, errs []string          // what is shown
	}{
		{"nothing", Logs{}, map[string]string{"0": "", "1": ""},
			[]string{shown("[rank0] ", stdout(0)), shown("[rank1] ", stdout(1))}, []string{shown("[rank0] ", stderr(0)), shown("[rank1] ", stderr(1))}},
		{"redirect all", Logs{Redirects: RankStreams{AllRanks: 3}},
			map[string]string{"0/stdout.log": stdout(0), "0/stderr.log": stderr(0), "1/stdout.log": stdout(1), "1/stderr.log": stderr(1)}, nil, nil},
		{"redirect some", Logs{Redirects: RankStreams{0: Stdout, 1: Stderr}},
			map[string]string{"0/stdout.log": stdout(0), "1/stderr.log": stderr(1)},
			[]string{shown("[rank1] ", stdout(1))}, []string{shown("[rank0] ", stderr(0))}},
		{"tee one stream", Logs{Tee: RankStreams{AllRanks: Stdout}},
			map[string]string{"0/stdout.log": stdout(0), "1/stdout.log": stdout(1)},
			[]string{shown("[default0]:", stdout(0)), shown("[default1]:", stdout(1))}, []string{shown("[rank0] ", stderr(0)), shown("[rank1] ", stderr(1))}},
		{"redirect and tee", Logs{Redirects: RankStreams{AllRanks: 3}, Tee: RankStreams{1: Stderr}},
			map[string]string{"0/stdout.log": stdout(0), "0/stderr.log": stderr(0), "1/stdout.log": stdout(1), "1/stderr.log": stderr(1)},
			nil, []string{shown("[default1]:", stderr(1))}},
		{"show rank 1", Logs{LocalRanks: []int{1}, Tee: RankStreams{AllRanks: Stderr}},
			map[string]string{"0/stderr.log": stderr(0), "1/stderr.log": stderr(1)},
			[]string{shown("[rank1] ", stdout(1))}, []string{shown("[default1]:", stderr(1))}},
		{"filters", Logs{Tee: RankStreams{AllRanks: 3}, StdoutFilters: []string{"apple", "nothing"}, StderrFilters: []string{"pear"}, LocalRanks: []int{0}, Prefix: "${role_name}/$rank/${local_rank}/$$/${what}: "},
			map[string]string{"0/stdout.log": stdout(0), "0/stderr.log": stderr(0), "1/stdout.log": stdout(1), "1/stderr.log": stderr(1),
				"filtered_stdout.log": "default/0/0/$/${what}: apple 0\n", "filtered_stderr.log": "default/0/0/$/${what}: pear 0\n"},
			[]string{shown("default/0/0/$/${what}: ", stdout(0))}, []string{shown("default/0/0/$/${what}: ", stderr(0))}},
		{"filters of what is not teed", Logs{StdoutFilters: []string{"apple"}},
			map[string]string{"0": "", "1": "", "filtered_stdout.log": ""},
			[]string{shown("[rank0] ", stdout(0)), shown("[rank1] ", stdout(1))}, []string{shown("[rank0] ", stderr(0)), shown("[rank1] ", stderr(1))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs output
			cfg := self(t, 2, "print")
			cfg.Logs, cfg.Stdout, cfg.Stderr, cfg.RunID = tt.logs, &out, &errs, "my/job"
			cfg.Logs.Dir = filepath.Join(t.TempDir(), "a", "b")
			checkLeaks(t, func() {
				if err := Run(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
			})
			want := map[string]string{}
			for name, text := range tt.files {
				want["my_job_*/attempt_0/"+name] = text
			}
			if got := tree(t, cfg.Logs.Dir); !maps.Equal(got, want) {
				t.Errorf("files %q, want %q", got, want)
			}
			// Ranks write at the same time: their lines may mix.
			sorted := func(s string) []string {
				l := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
				slices.Sort(l)
				return l
			}
			if got, want := sorted(out.String()), sorted(strings.Join(tt.out, "")); !slices.Equal(got, want) {
				t.Errorf("shown %q, want %q", got, want)
			}
			if got, want := sorted(errs.String()), sorted(strings.Join(tt.errs, "")); !slices.Equal(got, want) {
				t.Errorf("shown as errors %q, want %q", got, want)
			}
		})
	}
}

// Each attempt has its directory, and one of the same number begins anew.
func TestLogsOfAttempts(t *testing.T) {
	cfg := self(t, 1, "brittle:1")
	cfg.Stdout, cfg.Stderr, cfg.MaxRestarts = &output{}, &output{}, 1
	cfg.Logs = Logs{Dir: t.TempDir(), Redirects: RankStreams{0: Stdout}}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	got := tree(t, cfg.Logs.Dir)
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"none_*/attempt_0/0/stdout.log", "none_*/attempt_1/0/stdout.log"}) {
		t.Errorf("files %q", got)
	}
	h, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	old := filepath.Join(h.logs.dir, "attempt_1", "0", "old")
	writeFiles(t, filepath.Dir(old), map[string]string{"old": ""})
	if err := h.Run(t.Context(), Attempt{Number: 1, MasterPort: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of an earlier attempt is still there: %v", err)
	}
}

// No directory is named: files that were asked for stay, and it is said where.
func TestLogsSomewhere(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var errs output
	cfg := self(t, 1, "print")
	cfg.Stdout, cfg.Stderr, cfg.Logs = &output{}, &errs, Logs{Tee: RankStreams{AllRanks: 3}}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(os.Getenv("TMPDIR") + "/torchelastic_*/none_*/attempt_0/0/std*.log")
	if len(files) != 2 || !strings.Contains(errs.String(), "log files are in "+os.Getenv("TMPDIR")+"/torchelastic_") {
		t.Errorf("files %v, said\n%s", files, errs.String())
	}
}

func TestLogsNowhere(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out output
	cfg := self(t, 1, "print")
	cfg.Stdout, cfg.Stderr, cfg.Logs = &out, &output{}, Logs{Dir: os.DevNull, Redirects: RankStreams{AllRanks: 3}}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(os.Getenv("TMPDIR") + "/*"); len(left) > 0 || !strings.Contains(out.String(), "[rank0] apple 0\n") {
		t.Errorf("files %v, shown %q", left, out.String())
	}
}

// A log that cannot be written any more ends, and the job does not.
func TestLogsFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	var shown, notices output
	c := &relay{prefix: []byte("> "), dst: &sink{w: &shown}, file: full, trouble: func(err error) { fmt.Fprintln(&notices, err) }}
	c.run(&spy{Reader: strings.NewReader("a\nb\n")})
	if shown.String() != "> a\n> b\n" || strings.Count(notices.String(), "no space left") != 1 {
		t.Errorf("shown %q, told %q", shown.String(), notices.String())
	}
}

func TestLogsErrors(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"file": ""})
	if err := os.Mkdir(filepath.Join(dir, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		logs Logs
		want string
	}{
		{Logs{Dir: dir + "/file"}, "is, or is below, a file"},
		{Logs{Dir: dir + "/file/below"}, "is, or is below, a file"},
		{Logs{Dir: "/proc/here"}, "cannot be made"},
	}
	if os.Getuid() != 0 {
		tests = append(tests, struct {
			logs Logs
			want string
		}{Logs{Dir: dir + "/closed/logs"}, "cannot be written"})
	}
	for _, tt := range tests {
		cfg := self(t, 2, "print")
		cfg.Stdout, cfg.Stderr, cfg.Logs = &output{}, &output{}, tt.logs
		err := Run(t.Context(), cfg)
		var bad *ConfigError
		if !errors.As(err, &bad) || bad.Field != "Logs" || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.logs, err, tt.want)
		}
	}
	// A job that cannot be started leaves no directory behind.
	cfg := self(t, 2, "print")
	cfg.Program, cfg.Stderr, cfg.Logs.Dir = "./nothing", &output{}, filepath.Join(dir, "logs")
	if err := Run(t.Context(), cfg); ExitCode(err) != 2 {
		t.Error(err)
	}
	if got := tree(t, cfg.Logs.Dir); len(got) > 0 {
		t.Errorf("left %v", got)
	}
}

func TestParseRankStreams(t *testing.T) {
	for text, want := range map[string]RankStreams{
		"0": {AllRanks: 0}, "3": {AllRanks: 3}, "0:3,1:0,12:2": {0: 3, 1: 0, 12: 2},
	} {
		if got, err := ParseRankStreams(text); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "4", "00", "0:4", "0:", ":1", "0:1,", "a:1", "0:1,0:2", "-1:2", "0:1;1:2", "99999999999:1"} {
		if got, err := ParseRankStreams(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzParseRankStreams(f *testing.F) {
	f.Add("0:3,1:2")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseRankStreams(text)
		if (err == nil) != (len(got) > 0) {
			t.Fatalf("%v, %v", got, err)
		}
		for local, v := range got {
			if local < AllRanks || v > 3 {
				t.Fatalf("%q: %v", text, got)
			}
		}
	})
}
