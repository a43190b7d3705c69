// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// still is a learning rate that changes nothing.
const still = 1e-30

// TestVisionCarriesOver: a run whose images have grown ends with the command that
// carries its weights over. That begins with what the model said of the classes that it
// knew, whatever their new numbers are.
func TestVisionCarriesOver(t *testing.T) {
	for _, model := range []string{visionMLP, visionCNN, visionResNet18} {
		if model == visionResNet18 && testing.Short() {
			continue
		}
		t.Run(model, func(t *testing.T) {
			c := smallVision(t)
			c.Model, c.Size, c.Data, c.Epochs, c.Batch = model, 16, folder(t, 20), 2, 8
			if err := trainVision(t.Context(), c, flags([]string{"size"}), 2, newLog()); err != nil {
				t.Fatal(err)
			}
			photo, err := os.ReadFile(filepath.Join(c.Data, "red", "001.jpg"))
			if err != nil {
				t.Fatal(err)
			}
			// Between the two, so that red has another number; and one that is left out.
			for i := range 30 {
				path := filepath.Join(c.Data, "green", fmt.Sprintf("%d.jpg", i))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, photo, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err = CheckVision(t.Context(), c, nil)
			if want := fmt.Sprintf("cohort train vision --data %s --init-from %s --out %s-2", c.Data, c.Out, c.Out); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("images have come: %v, want %q", err, want)
			}
			next := DefaultVision()
			next.Data, next.InitFrom, next.Out, next.LR, next.Epochs, next.Batch, next.WeightDecay = c.Data, c.Out, c.Out+"-2", still, 1, 8, 0
			given := flags([]string{"data", "init-from", "out", "lr", "epochs", "batch", "weight-decay"})
			settings, err := CheckVision(t.Context(), next, given)
			if err != nil || !strings.Contains(string(settings), "size = 16") || !strings.Contains(string(settings), "# the model's") {
				t.Fatalf("%v\n%s", err, settings)
			}
			l := newLog()
			if err := trainVision(t.Context(), next, given, 2, l); err != nil {
				t.Fatal(err)
			}
			want := `2 of 3 classes are carried over by name, anew are ["green"]; the optimizer, its rates and the order of the samples begin anew`
			if text := strings.Join(l.notices, "\n"); strings.Count(text, want) != 1 {
				t.Errorf("%s, want %q", text, want)
			}
			logits := func(dir string) (classes []string, of []float32) {
				at, err := findModel(t.Context(), storage.Dir(dir), func(string) {})
				if err != nil {
					t.Fatal(err)
				}
				m, err := OpenClassifier(at.checkpoint)
				if err != nil {
					t.Fatal(err)
				}
				set, _, err := vision.Open(c.Data)
				if err != nil {
					t.Fatal(err)
				}
				defer set.Close()
				var samples []vision.Sample
				images := vision.Apply(set, 0, m.Config.sized(set)...)
				for i := range 8 {
					s, err := images.Get(t.Context(), data.Key{Index: i})
					if err != nil {
						t.Fatal(err)
					}
					samples = append(samples, s)
				}
				b, err := m.Config.collate()(samples)
				if err != nil {
					t.Fatal(err)
				}
				ctx := nn.Evaluation(t.Context())
				defer ctx.Close()
				return m.Config.Classes, slices.Clone(m.Logits(ctx, m.Model, b).Float32s())
			}
			was, before := logits(c.Out)
			now, after := logits(next.Out)
			for i := range 8 {
				if model != visionMLP { // batch norms go on counting
					break
				}
				for k, class := range was {
					if a, b := before[i*len(was)+k], after[i*len(now)+slices.Index(now, class)]; math.Abs(float64(a-b)) > 1e-5 {
						t.Errorf("image %d: %s has the score %v, had %v", i, class, b, a)
					}
				}
			}
			// And it goes on as itself, by the same command and by a shorter one.
			for _, given := range []map[string]string{given, flags([]string{"data", "out"})} {
				next.Epochs++
				given["epochs"] = "flag"
				if err := trainVision(t.Context(), next, given, 2, newLog()); err != nil {
					t.Error(err)
				}
			}
			for flag, change := range map[string]func(*VisionConfig){
				"--size is 9, the model in " + c.Out + " has 16: leave the flag out": func(c *VisionConfig) { c.Size = 9 },
				"--out and --init-from are both":                                     func(c *VisionConfig) { c.Out = c.InitFrom },
				"does not exist":                                                     func(c *VisionConfig) { c.InitFrom = filepath.Join(t.TempDir(), "no") },
			} {
				other := next
				other.Out = filepath.Join(t.TempDir(), "run")
				change(&other)
				if _, err := CheckVision(t.Context(), other, flags([]string{"data", "init-from", "out", "size"})); err == nil || !strings.Contains(err.Error(), flag) {
					t.Errorf("%v, want %q", err, flag)
				}
			}
		})
	}
}

// TestHeads: what has a row for each class is found in every model.
func TestHeads(t *testing.T) {
	for model, want := range map[string]int{visionMLP: 2, visionCNN: 2, visionResNet18: 2, visionResNet50: 2} {
		c := ClassifierConfig{ModelType: model, Size: 32, Channels: 3, Classes: []string{"a", "b", "c"}}
		if model == visionMLP || model == visionCNN {
			c.Widths = []int{3, 3} // as many as classes
		}
		heads, err := headsOf(c)
		if err != nil || len(heads) != want {
			t.Errorf("%s: %q, %v", model, heads, err)
		}
	}
}

// TestRecCarriesOver: columns that come, or change their places, leave what the model
// says of a row as it was.
func TestRecCarriesOver(t *testing.T) {
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	text := func(rows int) string {
		var b strings.Builder
		b.WriteString("click,user_id,item_id,age,color,price\n")
		for range rows {
			user, item := r.IntN(40), r.IntN(20)
			fmt.Fprintf(&b, "%d,%d,%d,%d,%c,%d\n", (user+item+r.IntN(7))/5%2, user, item, 20+r.IntN(50), 'a'+r.IntN(3), r.IntN(100))
		}
		return b.String()
	}
	for _, model := range recommenders {
		c := smallRec(t)
		c.Data, c.Model, c.Batch, c.Epochs, c.Buckets = writeFile(t, "clicks.csv", text(2000)), model, 64, 2, 100
		c.Categories = []string{"user_id", "item_id"}
		names := []string{"data", "out", "model", "batch", "epochs", "buckets", "categories"}
		if model == recDLRM {
			c.Numbers = []string{"age"}
			names = append(names, "numbers")
		}
		if err := trainRec(t.Context(), c, flags(names), 2, newLog()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.Data, []byte(text(2500)), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := CheckRec(t.Context(), c, nil)
		if want := fmt.Sprintf("cohort train rec --data %s --init-from %s --out %s-2", c.Data, c.Out, c.Out); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("rows have come: %v, want %q", err, want)
		}
		for i, columns := range []struct {
			categories, numbers []string
			says                string
		}{
			{nil, nil, "2 of 2 categories are carried over by name;"},
			{[]string{"item_id", "user_id"}, []string{"age"}, "2 of 2 categories are carried over by name;"},
			{[]string{"color", "item_id", "user_id"}, []string{"price", "age"}, `anew are ["color"]`},
			{[]string{"item_id", "color"}, []string{"price"}, `left out are the model's ["user_id"]`},
		} {
			if model == recMF && len(columns.categories) > 0 {
				if columns.numbers = nil; len(columns.categories) > 2 {
					continue
				}
			}
			next := DefaultRec()
			next.Data, next.InitFrom, next.Out, next.LR, next.Batch, next.Epochs = c.Data, c.Out, fmt.Sprint(c.Out, "-", i), still, 64, 1
			given := flags([]string{"data", "init-from", "out", "lr", "batch", "epochs"})
			if columns.categories != nil {
				next.Categories, next.Numbers = columns.categories, columns.numbers
				given["categories"], given["numbers"] = "flag", "flag"
			}
			if _, err := CheckRec(t.Context(), next, given); err != nil {
				t.Fatal(err)
			}
			l := newLog()
			if err := trainRec(t.Context(), next, given, 2, l); err != nil {
				t.Fatalf("%s, %+v: %v", model, columns, err)
			}
			if said := strings.Join(l.notices, "\n"); strings.Count(said, columns.says) != 1 {
				t.Errorf("%s, %+v: %s", model, columns, said)
			}
			if i == 3 {
				continue // it says something else without the users
			}
			before, after := scoresOf(t, c.Out, c.Data), scoresOf(t, next.Out, c.Data)
			for i := range before {
				if math.Abs(before[i]-after[i]) > 1e-4 {
					t.Fatalf("%s, %+v: row %d has the score %v, had %v", model, columns, i, after[i], before[i])
				}
			}
			next.Epochs = 2
			if err := trainRec(t.Context(), next, given, 2, newLog()); err != nil {
				t.Errorf("%s, %+v: go on: %v", model, columns, err)
			}
		}
		for flag, want := range map[string]string{"width": "--width is 5, the model in " + c.Out + " has 8: leave the flag out", "buckets": "--buckets is 7, the model in " + c.Out + " has 100"} {
			other := DefaultRec()
			other.Data, other.InitFrom, other.Out, other.Width, other.Buckets = c.Data, c.Out, filepath.Join(t.TempDir(), "run"), 5, 7
			if _, err := CheckRec(t.Context(), other, flags([]string{"data", "init-from", "out", flag})); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// TestRecCarriesNothing: weights of a table with other columns are refused, not left out.
func TestRecCarriesNothing(t *testing.T) {
	text := func(header string) string {
		var b strings.Builder
		b.WriteString(header + "\n")
		for i := range 400 {
			fmt.Fprintf(&b, "%d,%d,%d,%d\n", i%7%2, i%5, i%3, i%11)
		}
		return b.String()
	}
	for _, model := range recommenders {
		c := smallRec(t)
		c.Data, c.Model, c.Batch, c.Epochs, c.Buckets = writeFile(t, "a.csv", text("click,user_id,item_id,shop_id")), model, 64, 1, 100
		names := []string{"data", "out", "model", "batch", "epochs", "buckets", "categories"}
		if c.Categories = []string{"user_id", "item_id"}; model == recDLRM {
			c.Categories = append(c.Categories, "shop_id")
		}
		if err := trainRec(t.Context(), c, flags(names), 1, newLog()); err != nil {
			t.Fatal(err)
		}
		next := c
		next.Data, next.InitFrom, next.Out = writeFile(t, "b.csv", text("click,client_id,article_id,place_id")), c.Out, c.Out+"-2"
		if next.Categories = []string{"client_id", "article_id"}; model == recDLRM {
			next.Categories = append(next.Categories, "place_id")
		}
		err := trainRec(t.Context(), next, flags(append(names, "init-from")), 1, newLog())
		if want := `(categories ["user_id" "item_id"`; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "nothing can be carried over") {
			t.Errorf("%s: %v, want %s", model, err, want)
		}
	}
}

// scoresOf scores the rows of a file by the model of a run.
func scoresOf(t *testing.T, dir, file string) []float64 {
	t.Helper()
	at, err := findModel(t.Context(), storage.Dir(dir), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenRecommender(at.checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := table.Read(t.Context(), file, table.Format{}, m.Config.Schema)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := m.Score(t.Context(), rows.All(), 0, 50, 50)
	if err != nil {
		t.Fatal(err)
	}
	return scores
}

// TestCarryParts: what does not fit is an error, and nothing is written beyond it.
func TestCarryParts(t *testing.T) {
	into := tensor.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	from := tensor.FromFloat32([]float32{10, 20, 30, 40}, 2, 2)
	for _, p := range []carried{
		{from: "w", rows: []int{0, 1}}, {from: "w", cols: []int{0, 1, 2}}, {from: "w", cols: []int{0, 1}}, {from: "w", rows: []int{0}, cols: []int{0, 1, 1}},
	} {
		if err := carryParts(into, from, p); err == nil {
			t.Errorf("%+v was carried over", p)
		}
	}
	if err := carryParts(into, from, carried{from: "w", rows: []int{1, -1}, cols: []int{1, -1, 0}}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(into.Float32s()), "[40 0 30 4 5 6]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := carry(nn.NamedTensors{{Name: "a", Tensor: into}}, nil, func(string) carried { return carried{from: "b"} }); err == nil {
		t.Error("a tensor of no model was carried over")
	}
}
