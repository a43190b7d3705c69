// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/cohort-ml/cohort/internal/random"
)

// Generated is the size of a table of clicks that nobody made: users see items,
// and click with a probability that is known. Users and items have hidden
// vectors whose product says who likes what, some of both click more than
// others, and what else a row has counts too: the hour, the device, the user's
// age and the item's price. A few users and items make most of the rows, and one
// age in twenty is missing.
//
// What no model can know is where each probability falls, so its labels cannot
// be told better than by [Part.Truth]: the AUC and log loss of these logits bound
// those of every model.
type Generated struct {
	Rows  int
	Users int
	Items int
	Seed  int64 // of everything: equal seeds give equal tables, of which one with fewer rows is a beginning
}

// DefaultGenerated is a table that a laptop learns in seconds.
func DefaultGenerated() Generated { return Generated{Rows: 300_000, Users: 500, Items: 300} }

// Schema is that of the generated columns, of buckets in which no two users or
// items meet.
func (g Generated) Schema() Schema {
	return Schema{
		Label: "click", Numbers: []string{"age", "price"}, Categories: []string{"user_id", "item_id", "hour", "device"},
		Buckets: max(g.Users, g.Items, numHours) + 2,
	}
}

const (
	tasteWidth = 4 // of the hidden vectors
	numHours   = 24
)

var devices = [...]string{"phone", "tablet", "desktop"}

// Streams of the generator.
const (
	ofUsers = iota
	ofItems
	ofRows
)

// Validate reports sizes that make no table.
func (g Generated) Validate() error {
	for _, n := range []struct {
		name  string
		count int
	}{{"rows", g.Rows}, {"users", g.Users}, {"items", g.Items}} {
		if n.count < 1 || n.count > 1<<30 {
			return fmt.Errorf("table: a generated table of %d %s: want 1 to %d", n.count, n.name, 1<<30)
		}
	}
	return nil
}

// impression is one generated row.
type impression struct {
	user, item, hour, device int
	age, price               float32 // age is NaN where it is missing
	logit                    float64
	click                    bool
}

// all yields the rows in order.
func (g Generated) all(yield func(impression) error) error { return g.between(0, g.Rows, yield) }

// between yields the rows from..to-1.
func (g Generated) between(from, to int, yield func(impression) error) error {
	p := random.Philox{Key: uint64(g.Seed)}
	tastes := func(stream uint64, n int) []float32 {
		v := make([]float32, n*(tasteWidth+1)) // a vector and how often it clicks at all
		p.Normal(v, stream, 0, 0, 1)
		return v
	}
	users, items := tastes(ofUsers, g.Users), tastes(ofItems, g.Items)
	for i := from; i < to; i++ {
		var u [8]float32
		p.Uniform(u[:], ofRows, uint64(i)*uint64(len(u)), 0, 1)
		// Squares make those with small numbers common.
		m := impression{
			user:   min(int(u[0]*u[0]*float32(g.Users)), g.Users-1),
			item:   min(int(u[1]*u[1]*float32(g.Items)), g.Items-1),
			hour:   min(int(u[2]*numHours), numHours-1),
			device: min(int(u[3]*float32(len(devices))), len(devices)-1),
			age:    float32(18 + int(u[4]*60)),
			price:  float32(math.Round(float64(u[5]*u[5])*10_000)) / 100,
		}
		a, b := users[m.user*(tasteWidth+1):][:tasteWidth+1], items[m.item*(tasteWidth+1):][:tasteWidth+1]
		// Every product is rounded before it is added, so that no processor fuses them
		// and labels are the same everywhere.
		logit := -1 + float64(0.6*float64(a[tasteWidth])) + float64(0.6*float64(b[tasteWidth]))
		for j := range tasteWidth {
			logit += float64(0.8 * float64(a[j]) * float64(b[j]))
		}
		if m.hour >= 18 {
			logit += 0.6
		}
		if devices[m.device] == "desktop" {
			logit -= 0.4
		}
		logit -= float64(0.02 * float64(m.age-48))
		logit -= float64(0.01 * float64(m.price-33))
		m.logit = logit
		m.click = float64(u[6]) < sigmoid(logit)
		if u[7] < 0.05 {
			m.age = nan // it counted all the same
		}
		if err := yield(m); err != nil {
			return err
		}
	}
	return nil
}

// Table makes the table in memory.
func (g Generated) Table() (*Table, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	t := g.table(0, g.Rows)
	return t, t.chain()
}

// table makes the rows from..to-1.
func (g Generated) table(from, to int) *Table {
	t := &Table{Schema: g.Schema(), Name: fmt.Sprintf("generated clicks of %d users on %d items", g.Users, g.Items)}
	var digits []byte
	number := func(n int) int32 {
		digits = strconv.AppendInt(digits[:0], int64(n), 10)
		return t.Schema.Bucket(digits)
	}
	names := make([]int32, len(devices))
	for i, name := range devices {
		names[i] = t.Schema.Bucket([]byte(name))
	}
	_ = g.between(from, to, func(m impression) error {
		row := Row{
			Numbers:    []float32{m.age, m.price},
			Categories: []int32{number(m.user), number(m.item), number(m.hour), names[m.device]},
		}
		if m.click {
			row.Label = 1
		}
		t.append(row)
		t.truth = append(t.truth, float32(m.logit))
		return nil
	})
	return t
}

// WriteCSV writes the table as a file that [Read] with Schema reads into an
// equal one, except that its truth is lost.
func (g Generated) WriteCSV(w io.Writer) error {
	if err := g.Validate(); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	out.WriteString("click,user_id,item_id,hour,device,age,price\n")
	err := g.all(func(m impression) error {
		click, age := 0, ""
		if m.click {
			click = 1
		}
		if m.age == m.age {
			age = strconv.FormatFloat(float64(m.age), 'g', -1, 32)
		}
		_, err := fmt.Fprintf(out, "%d,%d,%d,%d,%s,%s,%g\n", click, m.user, m.item, m.hour, devices[m.device], age, m.price)
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("table: write generated rows: %w", err)
	}
	return nil
}
