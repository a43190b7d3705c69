// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

var numMutants = flag.Int("mutants", 3, "how many mutations TestMutations draws; 0 is all")

// collectives are those of package mesh, with how each is changed at a place where
// package parallel calls it. The first three are for the types to find.
var collectives = map[string][]string{
	"AllReduce":     {"dropped", "doubled", "axis", "avg", "max", "×N"},
	"ReduceScatter": {"dropped", "doubled", "axis", "avg", "max", "×N"},
	"AllGather":     {"dropped", "doubled", "axis", "×N"},
	"Broadcast":     {"dropped", "doubled", "axis", "root"},
}

// ofGroups are the methods of groups that move the values of a model, with how each is changed. The
// value in a Redistribute is a mesh.Tensor, whose types are checked.
var ofGroups = map[string][]string{
	"AllReduce":      {"dropped", "doubled", "×N"},
	"AllGather":      {"zeros", "×N"},
	"Broadcast":      {"dropped", "root"},
	"AllToAll":       {"zeros", "×N"},
	"AllToAllSingle": {"zeros", "×N"},
	"Send":           {"zeros", "×N"},
	"Batch":          {"zeros", "×N"},
	"Redistribute":   {"dropped", "×N"},
}

// kinds returns the mutations of the call.
func (s site) kinds() []string {
	if s.typed {
		return kindsOf(s.called)
	}
	return ofGroups[strings.TrimSuffix(s.called, "Async")]
}

// kindsOf returns the mutations of a collective, nil for other functions.
func kindsOf(called string) []string { return collectives[strings.TrimSuffix(called, "Async")] }

// ofTypes are the mutations that the types are to find.
var ofTypes = []string{"dropped", "doubled", "axis"}

// site is a call of a collective in package parallel.
type site struct {
	file   string
	line   int
	in     string // the function
	called string
	offset int // of the name of the collective
	typed  bool
}

// mutant is one change at one site.
type mutant struct {
	site int
	kind string
}

// TestMutations changes each call of a collective in this package in each way, trains
// small models, and wants an error: from the types for a call that is dropped, doubled
// or over another axis, from a comparison with one rank for the others. The calls are
// read from the source. All of them:
//
//	go test ./parallel -run TestMutations -mutants 0 -timeout 60m -v
func TestMutations(t *testing.T) {
	t.Parallel()
	if os.Getenv("MUTANT") != "" {
		t.Skip("this is a mutant")
	}
	if testing.Short() {
		t.Skip("it builds the package's tests again")
	}
	sites, replaced := readSites(t)
	binary := buildMutants(t, replaced)
	var mutants []mutant
	for i, s := range sites {
		for _, kind := range s.kinds() {
			mutants = append(mutants, mutant{i, kind})
		}
	}
	if out, verdict := runMutant(t, binary, "none"); verdict != "survived" {
		t.Fatalf("without a mutation the training fails: %s\n%s", verdict, out)
	}
	r := rand.New(rand.NewPCG(seeded.Of(t), 3))
	if *numMutants > 0 {
		r.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
		mutants = mutants[:min(*numMutants, len(mutants))]
	}
	expected, found := 0, 0
	for _, m := range mutants {
		s := sites[m.site]
		out, verdict := runMutant(t, binary, fmt.Sprintf("%d %s", m.site, m.kind))
		t.Logf("%-20s %-22s %-18s %-8s killed by %-8s %s", fmt.Sprintf("%s:%d", s.file, s.line), s.in, s.called, m.kind, verdict, out)
		switch {
		case verdict != "types" && verdict != "law":
			t.Errorf("%s:%d: %s %s: %s: neither the types nor the comparison with one rank found it", s.file, s.line, s.called, m.kind, verdict)
		case s.typed && slices.Contains(ofTypes, m.kind):
			expected++
			if verdict == "types" {
				found++
			}
		}
	}
	if t.Logf("%d of %d mutations for the types were found by them", found, expected); found*100 < expected*95 {
		t.Errorf("the types found %d of %d calls that were dropped, doubled or over another axis, want 95 %%", found, expected)
	}
}

// readSites returns the calls of collectives, and the files with each call going
// through a mutant.
func readSites(t *testing.T) (sites []site, replaced map[string][]byte) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	replaced = map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "pytorch") {
			continue // PyTorch's wire has tests of its own
		}
		found := slices.DeleteFunc(sitesOf(t, name, text), func(s site) bool { return strings.Contains(untyped[s.in], "compared") })
		for i := len(found) - 1; i >= 0; i-- { // from the end, so that offsets stay
			call := fmt.Sprintf("Mutated(%d).", len(sites)+i)
			text = slices.Insert(text, found[i].offset, []byte(call)...)
		}
		if len(found) > 0 {
			replaced[name] = text
		}
		sites = append(sites, found...)
	}
	return sites, replaced
}

// untyped are the functions that communicate without types, and why.
var untyped = map[string]string{
	"firstDifference": "a description of the model, which is compared",
	"gather":          "checksums, which are compared",
	"agree":           "what the ranks have called, which is compared",
	"sumLoss":         "the loss that is reported: the pass is over, and has no types any more",
	"expertLoad":      "how often each expert was chosen, which has no gradient",
	"ReduceStats":     "statistics of a batch norm, which adds them up itself",
	"Average":         "a hook's buckets, whose mean TestHooksAsPyTorch compares",
	"sumLeft":         "a hook's matrices, as Average",
	"sumRight":        "a hook's matrices, as Average",
	"firstReport":     "a description of a pass, for an error",
	"shareBytes":      "bytes that rank 0 of an island has: they are no tensor",
	"countUses":       "how many ranks have used each parameter: only zero counts",
	"balanceExperts":  "how often each expert was chosen, which is compared with the mean of all: a factor changes nothing",
}

// TestCollectivesAreTyped: values and gradients are communicated only through the
// collectives of package mesh. PyTorch's wire has calls of its own.
func TestCollectivesAreTyped(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	numTyped := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "pytorch") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sitesOf(t, name, text) {
			if s.typed {
				numTyped++
			} else if kindsOf(s.called) != nil && untyped[s.in] == "" {
				t.Errorf("%s:%d: %s calls %s of a group, which checks no type: call that of package mesh, or list the function in `untyped` with the reason", s.file, s.line, s.in, s.called)
			}
		}
	}
	if numTyped < 6 {
		t.Errorf("%d typed collectives were found, which cannot be all", numTyped)
	}
}

func sitesOf(t *testing.T, name string, text []byte) (sites []site) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if called, ok := call.Fun.(*ast.SelectorExpr); ok && called.Sel.Name != "Mutated" && (kindsOf(called.Sel.Name) != nil || ofGroups[strings.TrimSuffix(called.Sel.Name, "Async")] != nil) {
					pkg, _ := called.X.(*ast.Ident)
					at := files.Position(called.Sel.Pos())
					sites = append(sites, site{name, at.Line, fn.Name.Name, called.Sel.Name, at.Offset, pkg != nil && pkg.Name == "mesh"})
				}
			}
			return true
		})
	}
	slices.SortFunc(sites, func(a, b site) int { return a.offset - b.offset })
	return sites
}

// buildMutants builds the tests of the package with all mutants in it.
func buildMutants(t *testing.T, replaced map[string][]byte) (binary string) {
	t.Helper()
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	put := func(at string, text []byte) {
		file := filepath.Join(dir, fmt.Sprintf("%d.go", len(overlay.Replace)))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[at] = file
	}
	for name, text := range replaced {
		put(filepath.Join(here, name), text)
	}
	for file, dir := range map[string]string{"mutant.go.txt": "mesh", "mutant_group.go.txt": "."} {
		mutants, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		put(filepath.Join(here, "..", "dist", dir, "mutant.go"), mutants)
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "mutants.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the mutants: %v\n%s", err, out)
	}
	return binary
}

const verdictMark = "verdict: "

// runMutant trains with one mutation, and returns who found it and what the error
// was.
func runMutant(t *testing.T, binary, which string) (message, verdict string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestMutant$", "-test.v")
	cmd.Env = append(os.Environ(), "MUTANT="+which)
	out, err := cmd.CombinedOutput()
	for line := range bytes.Lines(out) {
		if _, text, ok := bytes.Cut(line, []byte(verdictMark)); ok {
			verdict, message, _ = strings.Cut(string(text), ":")
			return strings.TrimSpace(message), verdict
		}
	}
	return fmt.Sprintf("%v\n%s", err, out), "no verdict"
}

// TestMutant is what a mutant runs. It is of no use alone.
func TestMutant(t *testing.T) {
	which := os.Getenv("MUTANT")
	if which == "" {
		t.Skip("TestMutations runs it with a mutation")
	}
	for _, d := range mutantDraws() {
		err := d.disturbed(t)
		if err == nil {
			continue
		}
		var typed *mesh.TypeError
		var value *sharding.Error
		var axis *mesh.AxisError
		verdict := "law"
		if errors.As(err, &typed) || errors.As(err, &value) || errors.As(err, &axis) || strings.Contains(err.Error(), "mesh: ") {
			verdict = "types"
		}
		t.Logf("%s%s: %s: %s", verdictMark, verdict, d.kind(), strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	t.Logf("%ssurvived: ", verdictMark)
}

// disturbed is a training that is compared with one rank's, and that a mutant has.
type disturbed interface {
	disturbed(t *testing.T) error
	kind() string
}

// mutantDraws are the trainings of a mutant: with sparse parameters, buffers, clipping
// and accumulation, and with all axes of a mesh.
func mutantDraws() []disturbed {
	model := modelDraw{Vocabulary: 7, Width: 5, Sparse: true, Blocks: []blockDraw{{Hidden: 4}, {Hidden: 3}}, Order: []int{0, 1}}
	ddp := draw{Seed: 1, Model: model, Strategy: "ddp", Replicate: 3, Shard: 1, Microbatches: 3, MaxNorm: 0.1, Optimizer: "sgd"}
	fsdp := ddp
	fsdp.Strategy, fsdp.Replicate, fsdp.Shard = "fsdp", 2, 2
	draws := []disturbed{ddp, fsdp}
	for _, z := range []lawSizes{
		{Replicate: 2, FSDP: 2}, {TP: 2}, {FSDP: 2, TP: 2}, {CP: 2}, {CP: 2, TP: 2}, {EP: 2}, {EP: 2, TP: 2}, {PP: 2}, {PP: 2, FSDP: 2}, {PP: 2, TP: 2},
	} {
		draws = append(draws, mutantNet(z))
	}
	pieces, experts := mutantNet(lawSizes{TP: 2}), mutantNet(lawSizes{CP: 2})
	pieces.Pieces = 2
	experts.Net.Blocks = mutantNet(lawSizes{EP: 2}).Net.Blocks // a balance loss counts the tokens of all ranks
	return append(draws, pieces, experts, normDraw{})
}

// mutantNet is a training on a mesh: with a tied head, clipping, an evaluation, and batches of unequal
// numbers of tokens.
func mutantNet(z lawSizes) meshDraw {
	for _, axis := range allAxes {
		n := axisSize(&z, axis)
		*n = max(1, *n)
	}
	d := usualNet()
	if z.EP > 1 {
		d = usualExperts().withExperts(func(b *netBlockDraw) { b.Options = nn.MoEOptions{Balance: 0.1, BiasStep: 0.05} })
	}
	d.Seed, d.Sizes, d.Microbatches, d.MaxNorm, d.Evaluate, d.Sequence, d.Net.Tied = 2, z, 3, 0.1, true, true, true
	if z.CP > 1 && z.TP == 1 {
		d.Method = "heads"
	}
	if z.PP > 1 {
		d.Schedule, d.Stages = "1f1b", 2
	}
	return d
}

// disturbed trains on ranks that begin with models of their own, and compares with one rank.
func (d meshDraw) disturbed(t *testing.T) error {
	want, err := d.alone(t.Context(), 0)
	for errors.Is(err, errTie) {
		d.Seed++
		want, err = d.alone(t.Context(), 0)
	}
	if err != nil {
		return err
	}
	d.disturb = true
	got, err := d.onRanks(t, d.Sizes, nil, "")
	if err != nil {
		return err
	}
	return d.compare(got, want, rounding{})
}

// kind is how a draw is named.
func (d meshDraw) kind() string {
	name := meshName(&d.Sizes)
	if d.Pieces > 0 {
		name += "in pieces "
	}
	if slices.ContainsFunc(d.Net.Blocks, func(b netBlockDraw) bool { return b.Experts > 0 }) {
		name += "with experts "
	}
	return strings.TrimSpace(name)
}

// normDraw is a model with batch norms whose statistics are those of all ranks.
type normDraw struct{}

// disturbed compares the loss of two ranks with that of one.
func (normDraw) disturbed(t *testing.T) error {
	const batch, first = 9, 5
	g, x, w := tensor.NewGenerator(5), tensor.Zeros(batch, 3, 4, 5), tensor.Zeros(batch, 4)
	g.Normal(x, 0.5, 1)
	g.Normal(w, 0.5, 1)
	want, err := normedPass(t.Context(), newNormed(0), x, w, 0, batch)
	if err != nil {
		return err
	}
	losses := make([]float64, 2)
	err = spawn(t, len(losses), func(ctx context.Context, g *dist.Group) (err error) {
		m := newNormed(0)
		ConvertSyncBatchNorm(m, g)
		from := []int{0, first, batch}[g.Rank():]
		losses[g.Rank()], err = normedPass(ctx, m, x, w, from[0], from[1])
		return err
	})
	if err != nil {
		return err
	}
	if got := losses[0] + losses[1]; !(math.Abs(got-want) <= 1e-5*math.Abs(want)) {
		return fmt.Errorf("the loss is %v, want %v", got, want)
	}
	return nil
}

// kind is how the draw is named.
func (normDraw) kind() string { return "batch norms" }

// disturbed trains on ranks that begin with models of their own, and compares with
// one rank.
func (d draw) disturbed(t *testing.T) error {
	want, err := d.alone(t.Context(), 0)
	if err != nil {
		return err
	}
	ranks := make([]outcome, d.ranks())
	err = spawn(t, d.ranks(), func(ctx context.Context, g *dist.Group) error {
		disturb := func(m any) {
			for _, s := range nn.StateDict(m) {
				if s.Tensor.DType() == tensor.Float32 && s.Tensor.NumElems() > 0 {
					s.Tensor.CopyFrom(s.Tensor.AddScalar(float64(g.Rank())))
				}
			}
		}
		tr, err := d.newTrainer(func(m *lawModel) (Strategy, error) {
			disturb(m)
			if d.Strategy == "ddp" {
				return NewDDP(ctx, m, g, small)
			}
			grid, err := mesh.New(ctx, g, mesh.Axis{Name: replicateAxis, Size: d.Replicate}, mesh.Axis{Name: shardAxis, Size: d.Shard})
			if err != nil {
				return nil, err
			}
			return FullyShard(ctx, m, grid)
		})
		if err != nil {
			return err
		}
		for _, b := range nn.Buffers(tr.model) {
			b.Data.CopyFrom(b.Data.AddScalar(float64(g.Rank()))) // the first pass takes rank 0's
		}
		tr.ranks = g.Size()
		r := rand.New(rand.NewPCG(d.Seed, 18))
		for range numSteps {
			batches := drawBatches(r, d.Model, d.Microbatches, d.ranks())
			valid := countValid(batches)
			for i, ranks := range batches {
				batches[i] = ranks[g.Rank() : g.Rank()+1]
			}
			if err := tr.step(ctx, batches, valid); err != nil {
				return err
			}
		}
		if err := tr.strategy.SyncBuffers(ctx); err != nil {
			return err
		}
		tr.keepState()
		ranks[g.Rank()] = tr.out
		return nil
	})
	if err != nil {
		return err
	}
	got, err := d.assemble(ranks)
	if err != nil {
		return err
	}
	return d.compare(got, want, rounding{})
}
