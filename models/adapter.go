// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
)

// The files of an adapter, as PEFT names them.
const (
	AdapterFile       = "adapter_model.safetensors"
	adapterConfigFile = "adapter_config.json"

	adapterPrefix   = "base_model.model."
	maxAdapterJSON  = 1 << 20
	maxAdapterNames = 1 << 20
)

// Matrix returns the weight, [in, out]; see nn.Projection.
func (p *Conv1D) Matrix() (weight *nn.Parameter, inFirst bool) { return p.Weight, true }

// adapterConfig is an adapter_config.json of PEFT, as far as it concerns us.
type adapterConfig struct {
	Base           *string           `json:"base_model_name_or_path"`
	Bias           string            `json:"bias"`
	FanInFanOut    bool              `json:"fan_in_fan_out"`
	InferenceMode  bool              `json:"inference_mode"`
	Init           any               `json:"init_lora_weights"`
	Alpha          float64           `json:"lora_alpha"`
	Dropout        float64           `json:"lora_dropout"`
	ModulesToSave  []string          `json:"modules_to_save"`
	Type           string            `json:"peft_type"`
	Rank           int               `json:"r"`
	Targets        adapterTargets    `json:"target_modules"`
	Excluded       adapterTargets    `json:"exclude_modules,omitzero"`
	Layers         oneOrMore[int]    `json:"layers_to_transform,omitempty"`
	LayersPattern  oneOrMore[string] `json:"layers_pattern,omitempty"`
	Task           string            `json:"task_type"`
	DoRA           bool              `json:"use_dora"`
	RankStabilized bool              `json:"use_rslora"`
	Ranks          sizePattern       `json:"rank_pattern"`
	Alphas         sizePattern       `json:"alpha_pattern"`

	layers []*regexp.Regexp // which find the number of a layer in a name
}

// AdapterConfig returns the adapter_config.json with which PEFT opens what
// nn.LoRA.State holds. base is the folder, or the name, of the model that was
// adapted, as PEFT's users will find it.
func AdapterConfig(l *nn.LoRA, base string) ([]byte, error) {
	o := l.Options
	a := adapterConfig{
		Base: &base, Bias: "none", InferenceMode: true, Init: true, Dropout: o.Dropout, Type: "LORA", Rank: o.Rank,
		Alpha: cmp.Or(o.Alpha, 2*float64(o.Rank)), Targets: adapterTargets{Names: o.Targets}, Task: "CAUSAL_LM", RankStabilized: o.RankStabilized,
	}
	for _, path := range slices.Sorted(maps.Keys(o.Own)) {
		own := o.Own[path]
		a.Ranks = append(a.Ranks, sizeOf{pattern: path, value: float64(own.Rank)})
		a.Alphas = append(a.Alphas, sizeOf{pattern: path, value: cmp.Or(own.Alpha, 2*float64(own.Rank))})
	}
	// PEFT asks how the matrices of the base lie.
	for _, m := range nn.Modules(l.Base) {
		if _, ok := m.(*Conv1D); ok {
			a.FanInFanOut = true
			break
		}
	}
	return json.MarshalIndent(a, "", "  ")
}

// SaveAdapter writes a folder that PEFT opens: adapter_config.json and the added
// matrices. The folder must not exist yet or be empty; files are written beside.
func SaveAdapter(dir string, l *nn.LoRA, base string, files map[string][]byte) error {
	config, err := AdapterConfig(l, base)
	if err != nil {
		return err
	}
	all := map[string][]byte{adapterConfigFile: append(config, '\n')}
	for name, data := range files {
		all[name] = data
	}
	return huggingface.Save(dir, l.State().All(), huggingface.SaveOptions{Weights: AdapterFile, Files: all})
}

// openAdapter opens the tensors of an adapter: a file, or the section of that name of a
// checkpoint whose ranks held parts of them.
func openAdapter(dir string) (interface {
	checkpoint.Source
	io.Closer
}, error) {
	f, err := safetensors.Open(filepath.Join(dir, AdapterFile))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	section := strings.TrimSuffix(AdapterFile, ".safetensors")
	c, cerr := checkpoint.Open(context.Background(), storage.Dir(dir), "")
	if cerr != nil || c.Manifest().Section(section) == nil {
		return nil, err
	}
	return c.Source(section)
}

// LoadAdapter reads a folder that PEFT's save_pretrained or [SaveAdapter] wrote,
// and returns the model with it. Adapters of other kinds than LoRA, and LoRAs
// that compute in other ways than nn.LoRA does, are errors; tensors that do not
// fit are all listed in a *checkpoint.StateDictError.
func LoadAdapter(dir string, m Pretrained) (*nn.LoRA, error) {
	a, err := readAdapterConfig(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, AdapterFile)
	f, err := openAdapter(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("models: %s has %s but not %s: was it saved without safetensors?", dir, adapterConfigFile, AdapterFile)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Adapters of a model saved without its head lack the prefix that ours has.
	ours := func(name string) string {
		inner, ok := strings.CutPrefix(name, adapterPrefix)
		if !ok {
			return name
		}
		return adapterPrefix + m.fromHuggingFace(inner)
	}
	src, err := checkpoint.Rename(f, ours)
	if err != nil {
		return nil, err
	}
	theirs := make(map[string]string) // PEFT's name of a module by ours
	for _, info := range f.Infos() {
		if module, ok := strings.CutSuffix(strings.TrimPrefix(info.Name, adapterPrefix), ".lora_A.weight"); ok {
			theirs[strings.TrimSuffix(strings.TrimPrefix(ours(info.Name), adapterPrefix), ".lora_A.weight")] = module
		}
	}
	if a.Targets.none() {
		a.Targets.Names = defaultTargets(m)
	}
	o, err := a.options(path, src.Infos(), theirs)
	if err != nil {
		return nil, err
	}
	l, err := nn.NewLoRA(&nn.Build{}, m, o)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	if err := checkpoint.LoadTensors(src, l.State().All(), inFloat32...); err != nil {
		return nil, err
	}
	return l, nil
}

// options returns what makes a LoRA with the tensors of a file. A module that
// the configuration targets and that has none adds nothing; the other way round
// PEFT would leave the tensors out, which is an error here. theirs are the names
// that PEFT has for our modules.
func (a adapterConfig) options(path string, infos []safetensors.Info, theirs map[string]string) (nn.LoRAOptions, error) {
	o := nn.LoRAOptions{Rank: a.Rank, Alpha: a.Alpha, Dropout: a.Dropout, RankStabilized: a.RankStabilized}
	if len(infos) > maxAdapterNames {
		return o, fmt.Errorf("models: %s has %d tensors, more than the %d allowed", path, len(infos), maxAdapterNames)
	}
	for _, info := range infos {
		name, ok := strings.CutPrefix(info.Name, adapterPrefix)
		target, isA := strings.CutSuffix(name, ".lora_A.weight")
		_, isB := strings.CutSuffix(name, ".lora_B.weight")
		if !ok || !isA && !isB {
			return o, fmt.Errorf("models: %s has a tensor %q: a LoRA has matrices lora_A.weight and lora_B.weight beside modules of %s", path, info.Name, adapterPrefix)
		}
		if !isA {
			continue
		}
		if !a.targeted(theirs[target]) {
			return o, fmt.Errorf("models: %s has matrices for %s, which target_modules and what else chooses in %s leave out", path, theirs[target], adapterConfigFile)
		}
		size := a.sizeFor(theirs[target])
		if len(info.Shape) != 2 || info.Shape[0] != size.Rank {
			return o, fmt.Errorf("models: %s: %s has the shape %v, but %s says rank %d", path, info.Name, info.Shape, adapterConfigFile, size.Rank)
		}
		o.Targets = append(o.Targets, target)
		if size != (nn.LoRASize{Rank: a.Rank, Alpha: a.Alpha}) {
			if o.Own == nil {
				o.Own = make(map[string]nn.LoRASize)
			}
			o.Own[target] = size
		}
	}
	slices.Sort(o.Targets)
	return o, nil
}

// AdapterBaseDir is the directory of a run in which the base of its adapters is,
// where the run keeps it.
const AdapterBaseDir = "base"

// AdapterBase returns the folder of the model that the adapter in a folder is
// for.
func AdapterBase(dir string) (string, error) {
	a, err := readAdapterConfig(dir)
	if err != nil {
		return "", err
	}
	return a.baseFolder(dir)
}

// baseFolder finds the base, which a configuration names by a path or, where it
// came from a hub, by a name that is nowhere here.
func (a adapterConfig) baseFolder(dir string) (string, error) {
	if a.Base == nil || *a.Base == "" {
		return "", fmt.Errorf("models: %s in %s does not name the model that it is for (base_model_name_or_path)", adapterConfigFile, dir)
	}
	// A run keeps its base beside its checkpoints, and best's in a directory of
	// their own: there it is where somebody has moved the run.
	if filepath.Base(filepath.Dir(*a.Base)) == AdapterBaseDir {
		for _, up := range []string{"..", filepath.Join("..", "..")} {
			path := filepath.Join(dir, up, AdapterBaseDir, filepath.Base(*a.Base))
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				return path, nil
			}
		}
	}
	if info, err := os.Stat(*a.Base); err != nil || !info.IsDir() {
		return "", fmt.Errorf("models: the adapter in %s is for %q, which is no folder on this machine: put the model there, or its path into base_model_name_or_path of %s",
			dir, *a.Base, adapterConfigFile)
	}
	return *a.Base, nil
}

func readAdapterConfig(dir string) (adapterConfig, error) {
	path := filepath.Join(dir, adapterConfigFile)
	f, err := os.Open(path)
	if err != nil {
		return adapterConfig{}, fmt.Errorf("models: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAdapterJSON+1))
	if err != nil {
		return adapterConfig{}, fmt.Errorf("models: %w", err)
	}
	if len(text) > maxAdapterJSON {
		return adapterConfig{}, fmt.Errorf("models: %s has more than the %d bytes allowed", path, maxAdapterJSON)
	}
	a, err := parseAdapterConfig(text)
	if err != nil {
		return adapterConfig{}, fmt.Errorf("models: %s: %w", path, err)
	}
	return a, nil
}

// adapterSettings are the keys that are read and those by which an adapter
// computes nothing else. All others, those that nobody knows among them, must ask
// for nothing: be absent, null, false or empty.
var adapterSettings = settings{
	honoured: []string{
		"base_model_name_or_path", "bias", "init_lora_weights", "lora_alpha", "lora_dropout", "peft_type", "r", "target_modules", "exclude_modules",
		"layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "use_rslora",
	},
	harmless: []string{
		"auto_mapping", "peft_version", "revision", "inference_mode", "task_type",
		"fan_in_fan_out",    // PEFT corrects it for the module that it finds
		"eva_config",        // of first values, which are replaced
		"megatron_core",     // where megatron_config is null
		"qalora_group_size", // where use_qalora is false
	},
}

// firstValues are the settings of init_lora_weights that leave the base as it
// is; the others move a part of it into the adapter.
var firstValues = []any{nil, true, false, "gaussian", "orthogonal", "eva"}

func parseAdapterConfig(text []byte) (adapterConfig, error) {
	a := adapterConfig{Bias: "none", Rank: 8, Alpha: 8}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return a, err
	}
	if kind, _ := all["peft_type"].(string); kind != "LORA" {
		return a, fmt.Errorf("it is of an adapter of type %q; there is LORA", kind)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(adapterSettings.honoured, key) && !slices.Contains(adapterSettings.harmless, key) && !neutral(all[key]) {
			return a, fmt.Errorf("it has %s %v, which is not supported", key, all[key])
		}
	}
	c, err := readConfig(text)
	if err != nil {
		return a, err
	}
	maps.DeleteFunc(c.keys, func(key string, _ json.RawMessage) bool { return !slices.Contains(adapterSettings.honoured, key) })
	if text, err = json.Marshal(c.keys); err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, err
	}
	if a.Bias != "none" {
		return a, fmt.Errorf("it trains biases (bias %q), which is not supported", a.Bias)
	}
	if text, ok := a.Init.(string); ok && !slices.Contains(firstValues, any(text)) {
		return a, fmt.Errorf("its init_lora_weights %q changed the weights of the base: merge it with PEFT, and open the merged model", text)
	}
	if a.Alpha == 0 {
		return a, errors.New("its lora_alpha is 0, so that it adds nothing")
	}
	if err := a.compile(); err != nil {
		return a, err
	}
	// Targets come from the tensors; what is checked here is the rest.
	o := nn.LoRAOptions{Rank: a.Rank, Alpha: a.Alpha, Dropout: a.Dropout, Targets: []string{"any"}}
	return a, o.Validate()
}
