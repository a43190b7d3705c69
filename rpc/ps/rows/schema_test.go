// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

func TestSchemaJSON(t *testing.T) {
	s := Schema{
		Name: "user", Width: 64, DType: tensor.BFloat16, Wire: tensor.Int8, Init: Init{Kind: Uniform, Scale: 0.125, Seed: 1<<64 - 1},
		Optimizer: Optimizer{Kind: FTRL, L1: 1}, Admit: 2, Evict: Eviction{Steps: 5}, Memory: 1 << 40,
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"user","width":64,"dtype":"bfloat16","wire":"int8","init":{"kind":"uniform","scale":0.125,"seed":18446744073709551615},` +
		`"optimizer":{"kind":"ftrl","l1":1},"admit":2,"evict":{"steps":5},"memory":1099511627776}`
	if string(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	var back Schema
	if err := json.Unmarshal(text, &back); err != nil || back != s {
		t.Errorf("%+v, %v", back, err)
	}
	for _, bad := range []string{`{"name":"a","widht":1}`, `{"dtype":"float8"}`, `{"wire":"int64"}`, `{"optimizer":{"kind":1}}`, `{"init":{"sale":1}}`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestValidate(t *testing.T) {
	for text, want := range map[string]string{
		`{"width":1}`:                                                            "name",
		`{"name":"a"}`:                                                           "width",
		`{"name":"a","width":1,"rows":-1}`:                                       "rows",
		`{"name":"a","width":1,"rows":4,"admit":2}`:                              "dense",
		`{"name":"a","width":1,"rows":4,"evict":{"rows":2}}`:                     "dense",
		`{"name":"a","width":1,"evict":{"steps":-2}}`:                            "evict",
		`{"name":"a","width":1,"memory":-2}`:                                     "memory",
		`{"name":"a","width":1,"init":{"kind":"ones"}}`:                          "init.kind",
		`{"name":"a","width":1,"init":{"scale":1}}`:                              "init.scale",
		`{"name":"a","width":1,"init":{"kind":"normal","scale":-1}}`:             "init.scale",
		`{"name":"a","width":1,"init":{"kind":"constant","scale":1e39}}`:         "init.scale",
		`{"name":"a","width":1,"optimizer":{"kind":"lion"}}`:                     "optimizer.kind",
		`{"name":"a","width":1,"optimizer":{"kind":"adam"}}`:                     "lazy_adam",
		`{"name":"a","width":1,"optimizer":{"eps":1}}`:                           "optimizer.eps",
		`{"name":"a","width":1,"optimizer":{"kind":"adagrad","lr":-1}}`:          "optimizer.lr",
		`{"name":"a","width":1,"optimizer":{"kind":"lazy_adam","beta2":1}}`:      "optimizer.beta2",
		`{"name":"a","width":1,"optimizer":{"kind":"rowwise_adagrad","l1":0.5}}`: "optimizer.l1",
	} {
		var s Schema
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		var e *Error
		if err := s.Validate(); !errors.As(err, &e) || e.Kind != KindSchema || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want an error with %q", text, err, want)
		}
	}
	if err := (Schema{Name: "a", Width: 1, DType: tensor.Int64}).Validate(); err == nil {
		t.Error("rows of int64 were taken")
	}
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"name":"a","width":4,"rows":9,"dtype":"int8","optimizer":{"kind":"adam","lr":0.5},"init":{"kind":"normal","scale":1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s Schema
		if json.Unmarshal(text, &s) != nil || s.Validate() != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Schema
		if err := json.Unmarshal(again, &back); err != nil || back != s {
			t.Fatalf("%s became %s: %v", text, again, err)
		}
		if d := s.WithDefaults(); d != d.WithDefaults() || d.Validate() != nil {
			t.Fatalf("defaults %+v: %v", d, d.Validate())
		}
	})
}

// TestNumbersOfTheProtocol: hashes and first values never change.
func TestNumbersOfTheProtocol(t *testing.T) {
	// The numbers are those of a few lines of Python that follow the documentation.
	for key, want := range map[int64]uint64{0: 0, 1: 0xb456bcfc34c2cb2c, -1: 0x64b5720b4b825f21, math.MinInt64: 0x8f780810af31a493} {
		if got := Hash(key); got != want {
			t.Errorf("the hash of %d is %#x, want %#x", key, got, want)
		}
	}
	row := make([]float32, 5)
	for _, c := range []struct {
		init Init
		want []float32
	}{
		{Init{}, make([]float32, 5)},
		{Init{Kind: Uniform, Scale: 1, Seed: 3}, []float32{-0.49866426, -0.72069776, 0.30973887, -0.91157174, 0.052644134}},
		{Init{Kind: Normal, Scale: 1, Seed: 3}, []float32{1.0631654, 1.2794263, 0.88485146, 0.2523422, -1.1308584}},
	} {
		(Schema{Name: "user", Width: 5, Init: c.init}).First(row, -12)
		if err := sameBits(row, c.want); err != nil {
			t.Errorf("%+v: %v: %#v", c.init, err, row)
		}
	}
}
