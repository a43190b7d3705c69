// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/nn"
)

// The ways in which images get the size that a classifier takes.
const (
	fitMiddle = "middle" // the middle of the image, as of photos
	fitWhole  = "whole"  // all of it

	bilinear  = "bilinear"
	bicubic   = "bicubic"
	largeStem = "large"
)

// fitting returns the transforms that give an image the classifier's size. A photo is cut also
// where it has that size already: its like were in training.
func (c ClassifierConfig) fitting(size vision.Image) []vision.Transform {
	how := c.Fit
	if how == "" { // it was saved before that was written down
		how = fitWhole
		if slices.Equal(c.Mean, vision.ImageNet.Mean) {
			how = fitMiddle
		}
	}
	if how == fitMiddle {
		return c.middle()
	}
	if c.Size == size.Width && c.Size == size.Height {
		return nil
	}
	return []vision.Transform{vision.ResizeTo{Width: c.Size, Height: c.Size, Cubic: c.isCubic()}}
}

// checkFit reports a way that is not known.
func (c ClassifierConfig) checkFit() error {
	if c.Interpolation != "" && c.Interpolation != bilinear && c.Interpolation != bicubic {
		return fmt.Errorf("a classifier of images with the interpolation %q: want %s or %s", c.Interpolation, bilinear, bicubic)
	}
	if c.Resize != 0 && (c.Resize < c.Size || c.Resize > 4*maxSide) {
		return fmt.Errorf("a classifier of images of %d pixels that scales them to %d: want %[1]d to %d", c.Size, c.Resize, 4*maxSide)
	}
	if c.Stem != "" && c.Stem != largeStem {
		return fmt.Errorf("a classifier of images with the stem %q: want %s, or none", c.Stem, largeStem)
	}
	if c.Fit != "" && c.Fit != fitMiddle && c.Fit != fitWhole {
		return fmt.Errorf("a classifier of images with the fit %q: want %s or %s", c.Fit, fitMiddle, fitWhole)
	}
	return nil
}

// fit brings an image into the size and the colours that the classifier takes.
func (c ClassifierConfig) fit(img vision.Image) (vision.Image, error) {
	if img.Width < 1 || img.Height < 1 || len(img.Pix) != img.Width*img.Height*img.Channels {
		return img, &FieldError{Field: "image", Detail: fmt.Sprintf("an image of %d·%d pixels, %d channels and %d bytes: vision.Decode makes one", img.Width, img.Height, img.Channels, len(img.Pix))}
	}
	r := rand.New(rand.NewPCG(0, 0)) // which these transforms do not ask
	for _, t := range c.fitting(img) {
		var err error
		if img, err = t.Apply(r, img); err != nil {
			return img, &FieldError{Field: "image", Detail: err.Error()}
		}
	}
	if c.Channels == 1 && img.Channels == 3 {
		img = grey(img)
	}
	return img, nil
}

// grey returns the brightness of an image, as Pillow's convert("L") has it.
func grey(img vision.Image) vision.Image {
	out := vision.Image{Width: img.Width, Height: img.Height, Channels: 1, Pix: make([]byte, img.Width*img.Height)}
	for i := range out.Pix {
		p := img.Pix[3*i:]
		out.Pix[i] = byte((uint32(p[0])*19595 + uint32(p[1])*38470 + uint32(p[2])*7471 + 1<<15) >> 16)
	}
	return out
}

// predict classifies a batch.
func (m *Classifier) predict(ctx context.Context, some []Prepared) (out []Prediction, err error) {
	samples := make([]vision.Sample, len(some))
	for i, p := range some {
		samples[i].Image = p.image
	}
	b, err := m.Config.collate()(samples)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	logits, err := finite(m.Logits(c, m.Model, b))
	if err != nil {
		return nil, err
	}
	for row := range slices.Chunk(logits, len(m.Config.Classes)) {
		out = append(out, likeliest(row, m.Config.Classes))
	}
	return out, nil
}

// row makes a row of values by the names of their columns. What the schema does not name is
// left out; a column that is missing altogether is an error, for it is most likely misspelt.
func (c RecommenderConfig) row(f table.Format, values map[string]any) (table.Row, error) {
	texts := make(map[string]string, len(values))
	for _, name := range slices.Concat(c.Schema.Numbers, c.Schema.Categories) {
		v, ok := values[name]
		if !ok {
			return table.Row{}, &FieldError{Field: name, Detail: fmt.Sprintf("it is missing; the model takes %q", slices.Concat(c.Schema.Numbers, c.Schema.Categories))}
		}
		switch v := v.(type) {
		case nil:
		case string:
			texts[name] = v
		case bool:
			texts[name] = strconv.FormatBool(v)
		case int64:
			texts[name] = strconv.FormatInt(v, 10)
		case float64:
			if math.IsNaN(v) {
				continue
			}
			texts[name] = strconv.FormatFloat(v, 'f', -1, 64)
		default:
			return table.Row{}, &FieldError{Field: name, Detail: fmt.Sprintf("it is %s, want a number or text", shortJSON(v))}
		}
	}
	row, err := c.Schema.RowOf(f, func(column string) string { return texts[column] })
	if bad, ok := err.(*table.RowError); ok {
		return row, &FieldError{Field: bad.Field, Detail: bad.Detail}
	}
	return row, err
}

// predict scores a batch of rows.
func (r *Recommender) predict(ctx context.Context, some []Prepared) (out []Prediction, err error) {
	rows := make([]table.Row, len(some))
	for i, p := range some {
		rows[i] = p.row
	}
	b, err := r.Config.Scale.Collate(rows)
	if err != nil {
		return nil, err
	}
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	logits, err := finite(r.Logits(c, r.Model, b))
	if err != nil {
		return nil, err
	}
	for _, v := range logits {
		out = append(out, Prediction{Probability: sigmoid(float64(v))})
	}
	return out, nil
}

// Fitting says in words what an image goes through before the model sees it.
func (c ClassifierConfig) Fitting() string {
	how := cmp.Or(c.Interpolation, bilinear)
	if len(c.fitting(vision.Image{})) == 2 {
		return fmt.Sprintf("scale the shorter side to %d (%s with antialiasing), take the middle %d·%d", c.short(), how, c.Size, c.Size)
	}
	return fmt.Sprintf("scale to %d·%d (%s with antialiasing)", c.Size, c.Size, how)
}
