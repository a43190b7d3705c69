// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pretrainedImages is a residual network of timm or torchvision: a folder with timm's
// config.json, or weights alone, whose shapes say which network they are of.
type pretrainedImages struct {
	path   string
	config ClassifierConfig
	named  bool // the names of the classes are known
	head   bool // there is an output layer
	source interface {
		checkpoint.Source
		io.Closer
	}
	from string // for people
}

// timmConfig is the config.json that timm writes. Older ones have the fields of Pretrained at
// the top.
type timmConfig struct {
	Architecture string          `json:"architecture"`
	NumClasses   int             `json:"num_classes"`
	NumFeatures  int             `json:"num_features,omitempty"`
	GlobalPool   string          `json:"global_pool,omitempty"`
	LabelNames   json.RawMessage `json:"label_names,omitempty"`
	ModelArgs    map[string]any  `json:"model_args,omitempty"`
	Pretrained   *timmInput      `json:"pretrained_cfg,omitempty"`
}

// timmInput says what becomes of an image.
type timmInput struct {
	InputSize     []int     `json:"input_size"`
	Interpolation string    `json:"interpolation"`
	CropPct       float64   `json:"crop_pct"`
	CropMode      string    `json:"crop_mode"`
	Mean          []float64 `json:"mean"`
	Std           []float64 `json:"std"`
	NumClasses    int       `json:"num_classes"`
	PoolSize      []int     `json:"pool_size,omitempty"`
	FirstConv     string    `json:"first_conv,omitempty"`
	Classifier    string    `json:"classifier,omitempty"`
}

// findPretrained opens a network of timm or torchvision. It returns nil where something else
// is, such as the directory of a run.
func findPretrained(ctx context.Context, c SaveConfig, dir string) (*pretrainedImages, error) {
	single := ""
	if strings.HasSuffix(dir, ".safetensors") {
		dir, single = path.Dir(dir), path.Base(dir)
	}
	from, err := c.open("init-from", dir)
	if err != nil {
		return nil, err
	}
	return pretrainedIn(ctx, from, single)
}

// pretrainedIn is findPretrained in a storage; single is the file with the weights if it has
// no usual name.
func pretrainedIn(ctx context.Context, from storage.Storage, single string) (*pretrainedImages, error) {
	text, err := storage.ReadFile(ctx, from, configFile, 1<<20)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	has, err := hasFile(ctx, from, checkpoint.ManifestName)
	if err != nil || has { // a checkpoint of a run
		return nil, err
	}
	var t timmConfig
	if text != nil {
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("%s: %w", storage.At(from, configFile), err)
		}
		if t.Architecture == "" && single == "" {
			return nil, nil
		}
	} else if has, err := hasFile(ctx, from, "model.safetensors"); single == "" && (err != nil || !has) {
		return nil, err
	}
	p := &pretrainedImages{path: from.String()}
	if single != "" {
		p.path = storage.At(from, single)
		p.source, err = openSingle(ctx, from, single)
	} else {
		p.source, err = huggingface.OpenIn(ctx, from, p.path)
	}
	if err != nil {
		return nil, err
	}
	if err := p.read(text, t); err != nil {
		p.source.Close() // the first error says why
		if text == nil && single == "" {
			err = fmt.Errorf("it has no %s, so it is taken for a residual network of torchvision: %w", configFile, err)
		}
		return nil, fmt.Errorf("%s: %w", p.path, err)
	}
	return p, nil
}

// openSingle opens a file of weights.
func openSingle(ctx context.Context, from storage.Storage, name string) (*singleFile, error) {
	o, err := from.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	f, err := safetensors.NewFile(o, o.Size(), storage.At(from, name))
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return &singleFile{f, o}, nil
}

type singleFile struct {
	*safetensors.File
	object io.Closer
}

// Close closes the file.
func (f *singleFile) Close() error { return f.object.Close() }

// read finds out what the network is and what becomes of images.
func (p *pretrainedImages) read(text []byte, t timmConfig) error {
	shapes := make(map[string][]int)
	for _, info := range p.source.Infos() {
		shapes[info.Name] = info.Shape
	}
	kind, err := residualKind(shapes)
	if err != nil {
		return err
	}
	classes := 0
	if s := shapes["fc.weight"]; len(s) == 2 {
		classes, p.head = s[0], true
	}
	p.config = ClassifierConfig{
		ModelType: kind, Size: 224, Channels: 3, Fit: fitMiddle, Stem: largeStem, Resize: 256, Interpolation: bilinear,
		Mean: []float64{0.485, 0.456, 0.406}, Std: []float64{0.229, 0.224, 0.225},
	}
	p.from = kind + " with torchvision's names; images are cut to 224 of 256 pixels, as its first weights want"
	var names []string
	if t.Architecture != "" {
		if names, err = p.readTimm(text, t, kind, classes); err != nil {
			return err
		}
	}
	p.named = names != nil
	for i := len(names); i < classes; i++ {
		names = append(names, strconv.Itoa(i))
	}
	if len(names) < 2 { // it has no head, but a classifier does
		p.head, names = false, []string{"0", "1"}
	}
	p.config.Classes = names
	return nil
}

// readTimm takes what timm's config.json says.
func (p *pretrainedImages) readTimm(text []byte, t timmConfig, kind string, classes int) (names []string, err error) {
	name, tag, _ := strings.Cut(t.Architecture, ".")
	if _, ok := resNets[name]; !ok {
		return nil, fmt.Errorf("%s names the architecture %q: of timm's models Cohort opens %s", configFile, t.Architecture, strings.Join(visionModels[2:], ", "))
	}
	if name != kind {
		return nil, fmt.Errorf("%s says that this is a %s, the weights are those of a %s", configFile, name, kind)
	}
	for key, value := range t.ModelArgs {
		if value == nil || slices.Contains([]string{"global_pool=avg", fmt.Sprintf("num_classes=%d", classes), "in_chans=3"}, fmt.Sprintf("%s=%v", key, value)) {
			continue
		}
		return nil, fmt.Errorf("%s: model_args.%s is %v, which Cohort does not honour", configFile, key, value)
	}
	if t.GlobalPool != "" && t.GlobalPool != "avg" {
		return nil, fmt.Errorf("%s: global_pool is %q, want avg", configFile, t.GlobalPool)
	}
	in := t.Pretrained
	if in == nil { // as older releases wrote it
		in = new(timmInput)
		if err := json.Unmarshal(text, in); err != nil {
			return nil, fmt.Errorf("%s: %w", configFile, err)
		}
	}
	c := &p.config
	if err := in.fill(c); err != nil {
		return nil, fmt.Errorf("%s: pretrained_cfg: %w", configFile, err)
	}
	p.from = strings.TrimSuffix(name+"."+tag, ".") + fmt.Sprintf(" of timm; images are cut to %d of %d pixels (%s)", c.Size, c.Resize, c.Interpolation)
	return labelNames(t.LabelNames, classes)
}

// fill writes down what becomes of an image.
func (in timmInput) fill(c *ClassifierConfig) error {
	if s := in.InputSize; len(s) > 0 {
		if len(s) != 3 || s[0] != 3 || s[1] != s[2] || s[1] < minSide || s[1] > maxSide {
			return fmt.Errorf("input_size is %v, want [3, N, N] with N from %d to %d", s, minSide, maxSide)
		}
		c.Size = s[1]
	}
	crop := in.CropPct
	if crop == 0 {
		crop = 0.875
	}
	if !(crop >= 0.25 && crop <= 1) {
		return fmt.Errorf("crop_pct is %v, want 0.25 to 1", crop)
	}
	c.Resize = int(math.Floor(float64(c.Size) / crop))
	if in.CropMode != "" && in.CropMode != "center" {
		return fmt.Errorf("crop_mode is %q, want center", in.CropMode)
	}
	switch in.Interpolation {
	case "", bilinear:
	case bicubic:
		c.Interpolation = bicubic
	default:
		return fmt.Errorf("interpolation is %q, want %s or %s", in.Interpolation, bilinear, bicubic)
	}
	for _, of := range []struct {
		name string
		from []float64
		to   *[]float64
	}{{"mean", in.Mean, &c.Mean}, {"std", in.Std, &c.Std}} {
		if of.from == nil {
			continue
		}
		if len(of.from) != 3 || of.name == "std" && !(slices.Min(of.from) > 0) {
			return fmt.Errorf("%s is %v, want three numbers, deviations above 0", of.name, of.from)
		}
		*of.to = of.from
	}
	return nil
}

// labelNames reads the names of classes: a list, or an object by number. No names give nil.
func labelNames(text json.RawMessage, classes int) ([]string, error) {
	if len(text) == 0 || bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	var list []string
	if json.Unmarshal(text, &list) != nil {
		var byNumber map[string]string
		if err := json.Unmarshal(text, &byNumber); err != nil {
			return nil, fmt.Errorf("%s: label_names is neither a list of texts nor an object of them", configFile)
		}
		list = make([]string, classes)
		for i := range list {
			list[i] = byNumber[strconv.Itoa(i)]
		}
	}
	if len(list) != classes || slices.Contains(list, "") {
		return nil, fmt.Errorf("%s: label_names has %d names, the output layer %d classes", configFile, len(list), classes)
	}
	return list, nil
}

// residualKind says which residual network weights are of.
func residualKind(shapes map[string][]int) (string, error) {
	missing := func(name string) (string, error) {
		return "", fmt.Errorf("it has no tensor %s: Cohort opens the residual networks of timm and torchvision, %s", name, strings.Join(visionModels[2:], ", "))
	}
	if _, ok := shapes["conv1.weight"]; !ok {
		return missing("conv1.weight")
	}
	for name, r := range resNets {
		last := fmt.Sprintf("layer3.%d.conv%%d.weight", r.Blocks[2]-1)
		if _, deeper := shapes[fmt.Sprintf("layer3.%d.conv1.weight", r.Blocks[2])]; deeper {
			continue
		}
		if _, ok := shapes[fmt.Sprintf(last, 1)]; !ok {
			continue
		}
		if _, three := shapes[fmt.Sprintf(last, 3)]; three != r.Bottleneck {
			continue
		}
		m, err := NewClassifier(&nn.Build{Device: tensor.Meta}, ClassifierConfig{ModelType: name, Size: 224, Channels: 3, Classes: []string{"0", "1"}})
		if err != nil {
			return "", err
		}
		left := maps.Clone(shapes)
		for _, want := range nn.StateDict(m.Model) {
			delete(left, want.Name)
			if strings.HasPrefix(want.Name, "fc.") {
				continue
			}
			got, ok := shapes[want.Name]
			if !ok && strings.HasSuffix(want.Name, ".num_batches_tracked") { // as before PyTorch 0.4
				continue
			}
			if !ok {
				return missing(want.Name)
			}
			if shape := want.Tensor.Shape(); !slices.Equal(got, shape) {
				return "", fmt.Errorf("tensor %s is %v, a %s has %v: wider and grouped networks are not opened", want.Name, got, name, shape)
			}
		}
		for _, extra := range slices.Sorted(maps.Keys(left)) {
			return "", fmt.Errorf("it has the tensor %s, which a %s has not", extra, name)
		}
		return name, nil
	}
	return "", fmt.Errorf("it is none of the residual networks that Cohort opens: %s", strings.Join(visionModels[2:], ", "))
}

// close closes the files, which were opened for reading alone.
func (p *pretrainedImages) close() { p.source.Close() }

// open loads the network, with an output layer of any values if it has none.
func (p *pretrainedImages) open() (*Classifier, error) {
	m, err := NewClassifier(&nn.Build{}, p.config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.path, err)
	}
	state := nn.StateDict(m.Model)
	if !p.head {
		state = slices.DeleteFunc(state, func(s nn.NamedTensor) bool { return strings.HasPrefix(s.Name, "fc.") })
	}
	return m, checkpoint.LoadTensors(p.source, state.All(), checkpoint.WithWidening(), checkpoint.WithPartial())
}

// says is the notice of what a run begins with.
func (p *pretrainedImages) says(classes []string) string {
	head := "the output layer is new"
	if p.named {
		head = matched("classes", classes, p.config.Classes)
	}
	return fmt.Sprintf("begins with the weights of %s, %s; %s", p.path, p.from, head)
}

// takePretrained gives the run the settings of the network that it begins with.
func (r *visionRun) takePretrained() error {
	p := r.pretrained
	*r.was = p.config
	s := source{dir: r.cfg.InitFrom}
	if err := s.inherit("vision", r.settings.Field("model"), p.config.ModelType); err != nil {
		return err
	}
	if r.cfg.Size != 0 {
		return nil // the network takes images of any size
	}
	return r.settings.Field("size").SetText(strconv.Itoa(p.config.Size), "the model")
}

// freeze marks the layers of a classifier that stay as they are.
func freeze(m *Classifier, names []string) error {
	if len(names) == 0 {
		return nil
	}
	heads, err := headsOf(m.Config)
	if err != nil {
		return err
	}
	isHead := func(layer string) bool {
		return slices.ContainsFunc(heads, func(h string) bool { return strings.HasPrefix(h, layer+".") })
	}
	used := make(map[string]bool)
	var known []string
	frozen := func(at string) bool {
		for _, n := range names {
			if at == n || strings.HasPrefix(at, n+".") || n == "body" && at != "" && !isHead(at) {
				used[n] = true
				return true
			}
		}
		return false
	}
	trained := 0
	layers := make(map[*tensor.Tensor]string)
	for _, s := range nn.StateDict(m.Model) {
		layers[s.Tensor] = s.Name[:max(strings.LastIndexByte(s.Name, '.'), 0)]
	}
	for _, p := range nn.Parameters(m.Model) {
		layer := layers[p.Data()]
		known = append(known, layer)
		if p.Frozen = frozen(layer); !p.Frozen {
			trained++
		}
	}
	for at, module := range nn.Modules(m.Model) {
		if n, ok := module.(*nn.BatchNorm2d); ok {
			n.Frozen = frozen(at)
		}
	}
	for _, n := range names {
		if !used[n] {
			return fmt.Errorf("train vision: --freeze: no layer of the model is called %q; there are %s", n, few(slices.Compact(known)))
		}
	}
	if trained == 0 {
		return errors.New("train vision: --freeze names all layers: nothing is left to train")
	}
	return nil
}

// file is config.json of a checkpoint: for a network that timm knows also with what timm asks
// for, so that `timm.create_model("local-dir:…")` opens the folder.
func (c ClassifierConfig) file() any {
	r, ok := resNets[c.ModelType]
	if !ok || c.hasSmallStem() {
		return c
	}
	names, err := json.Marshal(c.Classes)
	if err != nil { // of texts there is none
		return c
	}
	size := c.short()
	crop := float64(c.Size) / float64(size)
	if int(math.Floor(float64(c.Size)/crop)) != size {
		crop = float64(c.Size) / (float64(size) + 0.5)
	}
	features := 512
	if r.Bottleneck {
		features = 2048
	}
	how := c.Interpolation
	if how == "" {
		how = bilinear
	}
	pool := (c.Size + 31) / 32
	return struct {
		ClassifierConfig
		timmConfig
	}{c, timmConfig{
		Architecture: c.ModelType, NumClasses: len(c.Classes), NumFeatures: features, GlobalPool: "avg", LabelNames: names,
		Pretrained: &timmInput{
			InputSize: []int{3, c.Size, c.Size}, Interpolation: how, CropPct: crop, CropMode: "center", Mean: c.Mean, Std: c.Std,
			NumClasses: len(c.Classes), PoolSize: []int{pool, pool}, FirstConv: "conv1", Classifier: "fc",
		},
	}}
}
