// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// All ranks of a run must have the same settings, the same model and the same data. Each rank
// describes its own as the section run of a fingerprint, and the ranks compare hashes of that
// before step 0: settings, model and data before the model is spread, the order of the samples as
// soon as the feed is there. Only if a hash differs, some ranks send what they have, and the difference is shown as
// those of environments are.

const (
	// mostTensors is how many tensors of a model are described one by one.
	mostTensors = 4000
	// longSetting is from how many bytes on a value is shown by its beginning and a checksum.
	longSetting = 1000
	// mostKinds is how many of the descriptions that differ are compared.
	mostKinds = 8
	// shownRows is how many differences are shown.
	shownRows = 30
	// shownRanks is how many ranks are named one by one.
	shownRanks = 8
)

// describe describes settings, model and data of this rank. The model is not spread yet.
func (r *trainer[B]) describe(ctx context.Context) (*fingerprint.Fingerprint, error) {
	f := &fingerprint.Fingerprint{}
	if r.task.Samples > 0 {
		f.Set(fingerprint.Run, "samples", fmt.Sprint(r.task.Samples))
	}
	if err := describeSettings(f, r.o); err != nil {
		return nil, r.errorf("%w", err)
	}
	describeModel(f, r.task.Model)
	if r.task.Contents == nil {
		return f, nil
	}
	contents, err := r.task.Contents(ctx)
	if err != nil {
		return nil, r.errorf("%w", err)
	}
	for name, sum := range contents {
		f.Set(fingerprint.Run, "data."+shortKey(name), sum)
	}
	return f, nil
}

// contentsOf returns the function of a source of data that tells what the data hold; nil for none.
func contentsOf(data any) func(ctx context.Context) (map[string]string, error) {
	if d, ok := data.(interface {
		Contents(ctx context.Context) (map[string]string, error)
	}); ok {
		return d.Contents
	}
	return nil
}

// describeSettings adds the settings of a recipe and the options of the loop. A program that has
// no recipe is shown its options.
func describeSettings(f *fingerprint.Fingerprint, o Options) error {
	if len(o.Recipe) > 0 {
		var settings map[string]json.RawMessage
		if err := json.Unmarshal(o.Recipe, &settings); err != nil {
			settings = map[string]json.RawMessage{"recipe": o.Recipe} // a program's own form
		}
		for name, value := range settings {
			key := "setting." + name
			if name == "base" { // the checksum of the weights of --init-from
				key = "weights"
			}
			f.Set(fingerprint.Run, key, settingText(name, value))
		}
	}
	options := reflect.ValueOf(o)
	for i := range options.NumField() {
		switch name := options.Type().Field(i).Name; name {
		case "Out", "From", "SaveTo", "Config", "Prove", "Recipe", "length", "sought": // may differ between machines, or are above
		default:
			f.Set(fingerprint.Run, "option."+name, settingText(name, fmt.Append(nil, options.Field(i))))
		}
	}
	return nil
}

// settingText is a value of a setting for people: without the quotes of JSON, without secrets.
func settingText(name string, value []byte) string {
	text := string(value)
	var plain string
	if json.Unmarshal(value, &plain) == nil {
		text = plain
	}
	if len(text) > longSetting {
		sum := crc32.ChecksumIEEE([]byte(text))
		text = fmt.Sprintf("%s… (%d bytes, checksum %08x)", strings.ToValidUTF8(text[:longSetting/10], ""), len(text), sum)
	}
	return fingerprint.Mask(name, text)
}

// describeModel adds the tensors of a model: names, dtypes and shapes.
func describeModel(f *fingerprint.Fingerprint, model any) {
	h := sha256.New()
	n := 0
	add := func(name, kind string, t *tensor.Tensor) {
		text := fmt.Sprintf("%s%v %v", kind, t.DType(), t.Shape())
		fmt.Fprintf(h, "%q %s\n", name, text)
		if n++; n <= mostTensors {
			f.Set(fingerprint.Run, "tensor."+shortKey(name), text)
		}
	}
	for _, p := range nn.Parameters(model) {
		kind := ""
		if p.Frozen {
			kind = "frozen "
		}
		if p.Sparse {
			kind += "sparse "
		}
		add(p.Name(), kind, p.Data())
	}
	for _, b := range nn.Buffers(model) {
		add(b.Name(), "buffer ", b.Data)
	}
	f.Set(fingerprint.Run, "model", fmt.Sprintf("%d tensors, hash %x", n, h.Sum(nil)[:6]))
}

// shortKey cuts a name that is too long for a key.
func shortKey(name string) string {
	const most = 150
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%08x…%s", crc32.ChecksumIEEE([]byte(name)), strings.ToValidUTF8(name[len(name)-most:], ""))
}

// sameBefore makes sure that all ranks begin after the same step, with the same settings, model and
// data.
func (r *trainer[B]) sameBefore(ctx context.Context, saved *SavedRun) error {
	if r.axes.World.Size() == 1 {
		return nil
	}
	f, err := r.describe(ctx)
	if err != nil {
		return err
	}
	step := 0
	if saved != nil {
		step = saved.Checkpoint.Step
	}
	return r.compare(ctx, f, int64(step))
}

// sameOrder makes sure that all ranks take the same samples in the same order, from the same place
// on.
func (r *trainer[B]) sameOrder(ctx context.Context) error {
	if r.axes.World.Size() == 1 {
		return nil
	}
	f := &fingerprint.Fingerprint{}
	f.Set(fingerprint.Run, "data", r.feed.State().Order)
	f.Set(fingerprint.Run, "position", fmt.Sprint(r.feed.State().Position))
	return r.compare(ctx, f, int64(r.step))
}

// compare compares what the ranks have. Its error is the same on all ranks.
func (r *trainer[B]) compare(ctx context.Context, mine *fingerprint.Fingerprint, step int64) error {
	world := r.axes.World
	text, err := json.Marshal(mine)
	if err != nil {
		return r.errorf("describe the run: %w", err)
	}
	sum := sha256.Sum256(text)
	own := []int64{step, int64(binary.LittleEndian.Uint64(sum[:])), int64(binary.LittleEndian.Uint64(sum[8:]))}
	all := tensor.New(tensor.CPU(), tensor.Int64, world.Size(), len(own))
	if err := world.AllGather(ctx, all, tensor.FromInt64(own)); err != nil {
		return r.errorf("compare the settings and data of the ranks: %w", err)
	}
	said := slices.Collect(slices.Chunk(all.Int64s(), len(own)))
	kinds := map[[2]int64][]int{} // ranks with the same description
	var order [][2]int64          // by their first rank
	for rank, of := range said {
		if of[0] != said[0][0] {
			// A file system that lags behind has it the next time.
			return r.errorf("rank %d found %s, rank 0 %s (out %s): the ranks of all hosts must see the same directory, on a file system that they share",
				rank, checkpointOf(of[0]), checkpointOf(said[0][0]), r.o.Out)
		}
		kind := [2]int64(of[1:])
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], rank)
	}
	if len(order) == 1 {
		return nil
	}
	var nodes []fingerprint.Node
	var differing []fingerprint.Node
	for _, kind := range order[:min(len(order), mostKinds)] {
		ranks := kinds[kind]
		text, err := dist.BroadcastObject(ctx, world, json.RawMessage(text), ranks[0])
		if err != nil {
			return r.errorf("compare the settings and data of the ranks: %w", err)
		}
		print := &fingerprint.Fingerprint{}
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(print); err != nil {
			return r.errorf("rank %d described its run by what cannot be read: %w", ranks[0], err)
		}
		node := fingerprint.Node{Name: ranksAt(world, ranks), Print: print}
		differing = append(differing, node)
		for range ranks {
			nodes = append(nodes, node)
		}
	}
	different := r.tellDifferent(differing, fingerprint.Expected(nodes), len(order))
	// Nobody leaves before rank 0 has told.
	if err := world.Barrier(ctx); err != nil {
		return r.errorf("compare the settings and data of the ranks: %w", err)
	}
	return settled(different)
}

// tellDifferent prints what differs on rank 0, and returns an error with the first of it. numKinds
// is how many descriptions there are; only the first of them are given.
func (r *trainer[B]) tellDifferent(kinds []fingerprint.Node, expected *fingerprint.Fingerprint, numKinds int) error {
	var rows []fingerprint.Finding
	for _, k := range kinds {
		for _, f := range essential(fingerprint.Diff(expected, k.Print)) {
			f.Node = k.Name
			rows = append(rows, f)
		}
	}
	if len(rows) == 0 { // what is only told
		return r.errorf("%s and %s have described their settings and data otherwise: run the same program on all ranks", kinds[0].Name, kinds[1].Name)
	}
	shown, more := rows, ""
	if len(rows) > shownRows {
		shown, more = rows[:shownRows], fmt.Sprintf("  and %d more\n", len(rows)-shownRows)
	}
	var b strings.Builder
	b.WriteString("the ranks do not have the same settings, model and data:\n")
	for line := range strings.Lines(fingerprint.Table(shown)) {
		b.WriteString("  " + line)
	}
	b.WriteString(more)
	r.report.Notice(strings.TrimSuffix(b.String(), "\n"))

	first, rest := rows[0], ""
	if n := len(rows) - 1; n > 0 {
		rest = fmt.Sprintf(" (and %d more %s)", n, plural(n, "difference"))
	}
	if numKinds > len(kinds) {
		rest += fmt.Sprintf("; %d kinds of ranks differ in all", numKinds)
	}
	return r.errorf("%s: other data or flags than most ranks: %s is %s, want %s%s: give all ranks the same; %s",
		first.Node, first.Key, orNone(first.Found), orNone(first.Expected), rest, first.Mend)
}

func orNone(text string) string {
	if text == "" {
		return "missing"
	}
	return text
}

// essential leaves out what follows from another difference: the options of the loop that come
// from settings, and all but the first of the tensors of another model.
func essential(all []fingerprint.Finding) []fingerprint.Finding {
	count := map[string]int{}
	kindOf := func(f fingerprint.Finding) string {
		kind, _, _ := strings.Cut(f.Key, ".")
		if f.Key == "data" {
			return "order"
		}
		return kind
	}
	for _, f := range all {
		count[kindOf(f)]++
	}
	var out []fingerprint.Finding
	told := false
	for _, f := range all {
		switch kindOf(f) {
		case "option":
			if count["setting"] > 0 {
				continue
			}
		case "model":
			if count["tensor"] > 0 {
				continue
			}
		case "tensor":
			if told {
				continue
			}
			told = true
			if n := count["tensor"] - 1; n > 0 {
				f.Why += fmt.Sprintf(", in %d more %s too", n, plural(n, "tensor"))
			}
		case "order", "position":
			if count["data"] > 0 {
				continue
			}
		}
		out = append(out, f)
	}
	return out
}

// ranksAt names ranks and their hosts: "ranks 2, 3 (host b)".
func ranksAt(group *dist.Group, ranks []int) string {
	members := group.Members()
	var hosts, numbers []string
	for i, rank := range ranks {
		if i < shownRanks {
			numbers = append(numbers, fmt.Sprint(rank))
		}
		if h := members[rank].Host; h != "" && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	text := plural(len(ranks), "rank") + " " + strings.Join(numbers, ", ")
	if n := len(ranks) - len(numbers); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	switch {
	case len(hosts) == 1:
		text += " (host " + hosts[0] + ")"
	case len(hosts) > 1:
		text += fmt.Sprintf(" (hosts %s)", strings.Join(hosts[:min(len(hosts), shownRanks)], ", "))
	}
	return text
}

// checkpointOf says what a rank found that begins after a step.
func checkpointOf(step int64) string {
	if step == 0 {
		return "no checkpoint"
	}
	return fmt.Sprintf("that of step %d", step)
}
