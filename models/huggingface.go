// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Pretrained is a model that Hugging Face's tools know too: a [GPT], a [Llama]
// or an [Encoder]. As an nn.Module it maps int64 token ids [batch, time] to logits
// [batch, time, vocab], or to what an encoder's head computes.
type Pretrained interface {
	nn.Module
	// HuggingFaceConfig returns the config.json that makes Hugging Face's tools
	// open the model's weights.
	HuggingFaceConfig() ([]byte, error)
	// fromHuggingFace returns our name of a tensor in a folder of theirs, "" for
	// one that the model has no use for.
	fromHuggingFace(name string) string
}

const (
	configFile = "config.json"
	maxConfig  = 64 << 20
)

// LoadOption changes how a folder is opened.
type LoadOption func(*loading)

type loading struct {
	notice func(text string)
	ctx    context.Context
	from   storage.Storage // nil: a directory
	head   *Head           // of an encoder; nil is the folder's
	first  *nn.Build       // of a head that the folder lacks
	beside string          // the beginning of names of tensors that are not the model's
}

// WithNotice calls f with a sentence about what is in a folder and changes nothing
// here, where somebody may have meant it to: settings that nobody knows.
func WithNotice(f func(text string)) LoadOption { return func(l *loading) { l.notice = f } }

// WithStorage opens the folder in a storage, such as a bucket, in place of a directory. The
// name of the directory then only stands in errors. The folder may be that of a checkpoint:
// its bytes are compared with their checksums as they are read. The end of ctx ends reading.
func WithStorage(ctx context.Context, from storage.Storage) LoadOption {
	return func(l *loading) { l.ctx, l.from = ctx, from }
}

// LoadHuggingFace opens a folder that save_pretrained wrote: config.json says
// which model it is, the weights are in one safetensors file or in shards. Tensors
// that the model lacks or wants are all listed in a *checkpoint.StateDictError;
// settings by which it would compute something else are errors that name them.
//
// A model whose output layer is said to be its table of tokens, but that is
// stored with both, has both where they differ, as in transformers 5; older
// releases drop the output layer. Weights become float32, rounded if they have
// more.
func LoadHuggingFace(dir string, opts ...LoadOption) (m Pretrained, err error) {
	err = openHuggingFace(dir, opts, func(src checkpoint.Source, p *parsed) error {
		b := &nn.Build{}
		if p.first != nil {
			b = p.first
		}
		m = p.build(b)
		return loadInto(src, m, p.fresh())
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// inFloat32 takes weights as they are published: often bfloat16, now and then
// float64.
var inFloat32 = []checkpoint.LoadOption{checkpoint.WithWidening(), checkpoint.WithNarrowing()}

// Outline returns the model that LoadHuggingFace would, on tensor.Meta: it
// reports what LoadHuggingFace would, but for errors of the disk, and reads no
// weights but those of an output layer that may be the table of tokens again.
func Outline(dir string, opts ...LoadOption) (m Pretrained, err error) {
	err = openHuggingFace(dir, opts, func(_ checkpoint.Source, p *parsed) error {
		m = p.build(&nn.Build{Device: tensor.Meta})
		return nil
	})
	return m, err
}

// EachHuggingFace calls visit with each tensor of the model in a folder, one after the
// other, in the order of the model's state. A tensor has no memory any more when the next
// one is read.
func EachHuggingFace(dir string, visit func(s nn.NamedTensor) error, opts ...LoadOption) error {
	return openHuggingFace(dir, opts, func(src checkpoint.Source, p *parsed) error {
		for _, s := range p.inFiles.split(nn.StateDict(p.build(&nn.Build{Device: tensor.Meta}))) {
			one, err := checkpoint.Rename(src, func(name string) string {
				if name != s.Name {
					return ""
				}
				return name
			})
			if err != nil {
				return err
			}
			s.Tensor = tensor.Empty(s.Tensor.DType(), s.Tensor.Shape()...)
			if err = checkpoint.LoadTensors(one, nn.NamedTensors{s}.All(), inFloat32...); err == nil {
				err = visit(s)
			}
			s.Tensor.Free()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// openHuggingFace calls use with the tensors of a folder, under our names, and
// with the model that they have been compared with.
func openHuggingFace(dir string, opts []LoadOption, use func(src checkpoint.Source, p *parsed) error) error {
	var o loading
	for _, opt := range opts {
		opt(&o)
	}
	folder, text, err := o.open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	p, err := parsePretrained(text)
	if err != nil {
		return fmt.Errorf("%w (in %s)", err, dir)
	}
	if len(p.unknown) > 0 && o.notice != nil {
		o.notice(fmt.Sprintf("config.json in %s has settings that are not known here, and are left alone: %s", dir, strings.Join(p.unknown, ", ")))
	}
	if o.head != nil && p.heads == nil {
		return fmt.Errorf("models: %s holds no encoder, whose head can be another: a BERT, RoBERTa, XLM-R, MiniLM or DistilBERT is one", dir)
	}
	f := checkpoint.Source(folder)
	if p.inFiles != nil {
		f = unfused(f)
	}
	names, err := p.settle(f, o.head)
	if err != nil {
		return err
	}
	p.first = o.first
	// The configuration is only what a file says: nothing is allocated for it
	// before the weights agree.
	outline := p.inFiles.split(nn.StateDict(p.build(&nn.Build{Device: tensor.Meta})))
	known := make(map[string]bool, len(outline))
	for _, s := range outline {
		known[s.Name] = true
	}
	src, err := checkpoint.Rename(f, func(stored string) string {
		if o.beside != "" && strings.HasPrefix(stored, o.beside) {
			return ""
		}
		if name := names[stored]; name == "" || known[name] {
			return name
		}
		return stored // as its owner knows it, for the message
	})
	if err != nil {
		return err
	}
	if err := checkpoint.MatchTensors(src, without(outline, p.fresh()).All(), inFloat32...); err != nil {
		return err
	}
	return use(src, p)
}

// weights are the tensors of a folder.
type weights interface {
	checkpoint.Source
	io.Closer
}

// open opens the tensors of a folder, and reads its config.json.
func (l loading) open(dir string) (f weights, config []byte, err error) {
	if l.from != nil {
		switch ck, err := checkpoint.Open(l.ctx, l.from, ""); {
		case err == nil:
			if config, err = ck.ReadFile(configFile, maxConfig); err != nil {
				return nil, nil, err
			}
			f, err = ck.Source(checkpoint.Model)
			return f, config, err
		case !errors.Is(err, checkpoint.ErrNone) && !errors.Is(err, errors.ErrUnsupported): // of a web server, which lists nothing
			return nil, nil, err
		}
	} else {
		l.ctx, l.from = context.Background(), storage.Dir(dir)
	}
	folder, err := huggingface.OpenIn(l.ctx, l.from, dir)
	if err != nil {
		return nil, nil, err
	}
	if config, err = folder.ReadFile(l.ctx, configFile); err != nil {
		return nil, nil, errors.Join(err, folder.Close())
	}
	return folder, config, nil
}

// SaveHuggingFace writes a folder that from_pretrained opens: config.json and
// the weights, in shards if they have more than maxShardBytes (0 is Hugging
// Face's own bound). The folder must not exist yet or be empty; files, such as
// tokenizer.json, are written beside.
func SaveHuggingFace(dir string, m Pretrained, maxShardBytes int64, files map[string][]byte) error {
	config, err := m.HuggingFaceConfig()
	if err != nil {
		return err
	}
	all := map[string][]byte{configFile: append(config, '\n')}
	for name, data := range files {
		all[name] = data
	}
	return huggingface.Save(dir, stacksOf(m).split(nn.StateDict(m)).All(), huggingface.SaveOptions{MaxShardBytes: maxShardBytes, Files: all})
}

// parsed is what a config.json describes, so far as it can be known without the
// weights.
type parsed struct {
	unknown []string // settings that stand in no list
	build   func(b *nn.Build) Pretrained
	rename  func(name string) string // our name of a tensor, "" to leave it out
	inFiles stacks                   // of tensors that files hold in pieces; nil for none
	// The table of tokens and the output layer, which may be one.
	table, output string
	tied          bool
	untie         func() // makes build give the output layer weights of its own
	heads         *heads // of an encoder; nil for other models
	first         *nn.Build
}

// fresh names the tensors of a new head, which the folder has not.
func (p *parsed) fresh() []string {
	if p.heads == nil {
		return nil
	}
	return p.heads.fresh
}

// parsePretrained reads a config.json.
func parsePretrained(config []byte) (*parsed, error) {
	c, err := readConfig(config)
	if err != nil {
		return nil, err
	}
	kind, err := c.modelType()
	if err != nil {
		return nil, err
	}
	f, err := familyOf(&c, kind)
	if err != nil {
		return nil, err
	}
	p, err := f.open(&c)
	if err != nil {
		return nil, err
	}
	p.unknown = c.unknown
	return p, nil
}

// settle compares what config.json leaves open with the tensors that a folder
// holds, and returns our names of them, "" for those that the model has no use
// for.
func (p *parsed) settle(f checkpoint.Source, head *Head) (names map[string]string, err error) {
	names = make(map[string]string)
	stored := make(map[string]safetensors.Info) // by our name
	for _, info := range f.Infos() {
		name := p.rename(info.Name)
		names[info.Name] = name
		if _, twice := stored[name]; !twice {
			stored[name] = info
		}
	}
	table, hasTable := stored[p.table]
	output, hasOutput := stored[p.output]
	switch {
	case !p.tied || !hasOutput:
	case !hasTable:
		names[output.Name] = p.table
	default:
		same, err := equalTensors(f, table, output)
		if err != nil {
			return nil, err
		}
		if same {
			names[output.Name] = ""
		} else {
			p.tied = false
			p.untie()
		}
	}
	if p.heads != nil {
		p.settleHead(stored, names, head)
	}
	return names, nil
}

// equalTensors says whether two tensors hold the same bits. It reads both a piece at a
// time: no rank need have room for a whole table.
func equalTensors(f checkpoint.Source, a, b safetensors.Info) (bool, error) {
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return false, nil
	}
	const piece = 1 << 20
	x, y := make([]byte, piece), make([]byte, piece)
	for at, size := int64(0), int64(a.NumBytes()); at < size; at += piece {
		n := min(piece, size-at)
		if err := f.ReadRange(a.Name, x[:n], at); err != nil {
			return false, err
		}
		if err := f.ReadRange(b.Name, y[:n], at); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// withPrefix gives a tensor of a model saved without its head the name that it
// has with one.
func withPrefix(name, prefix string, heads ...string) string {
	for _, p := range append(heads, prefix) {
		if strings.HasPrefix(name, p) {
			return name
		}
	}
	return prefix + name
}
