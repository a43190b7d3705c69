// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// TestMistakes: a command that is nearly right is told what is meant, once,
// before anything starts.
func TestMistakes(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own") // what a program with a loop of its own leaves
	err := checkpoint.Save(t.Context(), nil, storage.Dir(own), 3, checkpoint.State{
		Files: func(w *checkpoint.Writer) error { return w.WriteFile("weights", []byte("x")) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, env, want string
		code            int
	}{
		{"eval out/n", "", `got "out/n": did you mean --from out/n?`, exitUsage},
		{"generate out/n", "", "did you mean --from out/n?", exitUsage},
		{"eval --from a out/n", "", `takes no argument, got "out/n"`, exitUsage},
		{"train vision --best false", "", "did you mean --best=false?", exitUsage},
		{"train rec", "COHORT_TRANSPORT=foo", `COHORT_TRANSPORT is "foo"`, exitUsage},
		{"train rec", "COHORT_SILENCE=abc", `COHORT_SILENCE is "abc"`, exitUsage},
		{"recorder none", "", "flightlog: none does not exist", exitFailed},
		{"train rec --data none.csv", "", "table: none.csv does not exist", exitUsage},
		{"tokenize decode --tokenizer none", "", "tokenizer: none does not exist", exitFailed},
		{"train lm --config none.toml", "", "none.toml does not exist", exitUsage},
		{"train lm --config none/at/all.toml", "", "none/at/all.toml: no such file", exitUsage},
		{"eval --from " + own, "", "of a program with a loop of its own", exitFailed},
		{"generate --from " + own, "", "of a program with a loop of its own", exitFailed},
		{"infer --from x", "", "unknown command infer for cohort: did you mean cohort predict?", exitUsage},
		{"trian lm --ranks 2", "", "unknown command trian for cohort: did you mean train?", exitUsage},
		{"train lmm --ranks 2", "", "unknown recipe lmm for cohort train: did you mean lm?", exitUsage},
		{"train LM --steps 1", "", "unknown recipe LM for cohort train: did you mean lm?", exitUsage},
		{"train --ranks 2", "", "--ranks is no flag of cohort train, but of cohort train classify, cohort train embed, cohort train lm, cohort train rec, cohort train vision: name the command first", exitUsage},
		{"--from x infer", "", "--from is no flag of cohort, but of cohort embed, cohort eval, cohort export, cohort generate, cohort predict, cohort serve", exitUsage},
		{"export --from x --out model.pt", "", `--out is "model.pt": name a file that ends with .onnx`, exitUsage},
		{"eval --from x --confusion c.png", "", `--confusion is "c.png": name a file that ends with .svg`, exitUsage},
		{"tokenize encod --data x", "", "unknown command encod for cohort tokenize: did you mean encode?", exitUsage},
		{"data chek --x", "", "unknown command chek for cohort data: did you mean check?", exitUsage},
		{"help infer", "", "unknown command infer for cohort", exitUsage},
		{"train help", "", "did you mean cohort train --help?", exitUsage},
		{"train lm -ranks 2", "", "unknown flag -ranks for cohort train lm: did you mean --ranks?", exitUsage},
		{"run --nproc 2 true", "", "unknown flag --nproc for cohort run: did you mean --nproc-per-node?", exitUsage},
		{"train vision --eval 100", "", "unknown flag --eval for cohort train vision: did you mean --eval-every?", exitUsage},
		{"eval --from none", "", "none does not exist: there is no checkpoint: want the directory of a run, which cohort train makes", exitFailed},
		{"generate --from none", "", "none does not exist: there is no checkpoint: want the directory of a run, which cohort train makes", exitFailed},
		{"env --x", "", "unknown flag --x for cohort env", exitUsage},
		{"generate --tokens abc", "", `invalid argument "abc" for --tokens: want a whole number`, exitUsage},
		{"train rec --json=maybe", "", `invalid argument "maybe" for --json: want true or false`, exitUsage},
		{"generate --temperature inf", "", "must be finite", exitUsage},
		{"train vision --ranks 100000", "", "--ranks is 100000", exitUsage},
		{"train vision --ranks 60000", "", "--ranks is 60000: 60000 ranks on a machine of", exitUsage},
		{"train rec --ranks 4 --fsdp 3", "", "train rec: --replicate ? × --fsdp 3 = --ranks 4: 4 is no multiple of 3; leave one of them out", exitUsage},
		{"train lm --ranks 4 --fsdp 3 --replicate 2", "", "train lm: --replicate 2 × --fsdp 3 = --ranks 4: the product is 6", exitUsage},
		{"train vision --tp 2", "", "train vision: --tp is 2, and an image classifier is not split over the axis tp: leave --tp out, and use --replicate and --fsdp", exitUsage},
		{"train lm --ranks 4 --fsdp 2 --tp 3 --replicate 1", "", "train lm: --replicate 1 × --fsdp 2 × --tp 3 = --ranks 4: the product is 6", exitUsage},
		{"train lm --fsdp -1", "", "--fsdp is -1, want 0 to 65536", exitUsage},
		{"train lm --replicate -1", "", "--replicate is -1, want 0 to 65536", exitUsage},
		{"train lm --fsdp 3 --replicate -1", "", "--replicate is -1, want 0 to 65536", exitUsage},
		{"train lm --fsdp 2 --init-from x --lora 4 --merge", "", "--merge puts the whole model on one rank, and --fsdp 2 shards it", exitUsage},
		{"schedule --name 1f1", "", `there is no schedule "1f1", did you mean "1f1b"? The schedules are gpipe, 1f1b`, exitUsage},
		{"schedule --ranks 4 --microbatches 3", "", "1f1b for 4 ranks, 4 stages and 3 microbatches: it needs as many microbatches as stages, and 3 < 4", exitUsage},
		{"schedule --name all --ranks 0", "", "a pipeline has at least 1 rank", exitUsage},
		{"schedule --name all --svg x.svg", "", "--svg draws one schedule: name it with --name", exitUsage},
		{"schedule --name zbv --stages 4", "", "zbv has two stages a rank, and 4 ≠ 2·4: cut the model into 8 stages", exitUsage},
		{"schedule --delay -1s", "", "--delay is -1s: want a time from 0 to an hour", exitUsage},
		{"schedule --ranks 9999 --microbatches 9999", "", "9999 stages with 9999 microbatches are more than this command plays", exitUsage},
		{"schedule --svg no/such/x.svg", "", "schedule: --svg: open no/such/x.svg", exitUsage},
		{"bench shard --strategy fsdp2.tp2 --ranks 2", "", "bench shard: fsdp 2 × tp 2 = 2 ranks: the product is 4; change the sizes or --ranks", exitUsage},
		{"bench shard --strategy pp:zb --ranks 2", "", `bench shard: strategy "pp:zb": schedule: there is no schedule "zb", did you mean "zbv"?`, exitUsage},
		{"bench shard --strategy pp --ranks 8", "", "1f1b for 8 ranks, 8 stages and 4 microbatches: it needs as many microbatches as stages, and 4 < 8", exitUsage},
		{"data check " + own, "", "of a program with a loop of its own", exitFailed},
	} {
		t.Run(c.args+c.env, func(t *testing.T) {
			if name, value, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(name, value)
			}
			var out, errs strings.Builder
			if code := run(strings.Fields(c.args), &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("code %d, want %d with %q\n%s", code, c.code, c.want, errs.String())
			}
		})
	}
}

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	info.Main.Version = "v1.2.3"
	if got, want := version(info, true), "cohort v1.2.3 (0123456789ab of 2026-01-02T03:04:05Z, changed since), go"; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want it to begin with %q", got, want)
	}
	if got := version(nil, false); !strings.HasPrefix(got, "cohort, go") {
		t.Errorf("without a note of the build: %q", got)
	}
	for _, args := range []string{"version", "--version"} {
		var out, errs strings.Builder
		if code := run([]string{args}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "cohort") || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("cohort %s: code %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}
