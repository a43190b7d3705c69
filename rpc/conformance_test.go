// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

var pythonFlag = flag.String("python", "", "the Python that plays the conformance script; by default whatever there is with NumPy")

// script is rpc/testdata/conformance.json, which says what it means.
type script struct {
	Cases []scriptCase `json:"cases"`
}

type scriptCase struct {
	Name    string  `json:"name"`
	Method  string  `json:"method"`
	In      any     `json:"in"`
	Out     any     `json:"out"`
	Raw     bool    `json:"raw"`
	Timeout float64 `json:"timeout"`
	Send    []any   `json:"send"`
	Recv    []any   `json:"recv"`
	Error   string  `json:"error"`
	Says    string  `json:"says"`
	Code    string  `json:"code"`
}

type confScalars struct {
	B   bool
	I8  int8
	I64 int64
	U64 uint64
	F32 float32
	F64 float64
	S   string
	Raw []byte
	T   time.Time
	D   time.Duration
	P   *int64
}

type confPoint struct {
	X float64
	Y *tensor.Tensor
}

type confLists struct {
	Ints   []int64
	Floats []float32
	Texts  []string
	Map    map[string]int64
	Nested [][]string
	Array  [3]int64
	Points []confPoint
}

type confOptional struct {
	Must int64
	May  int64 `rpc:",optional"`
}

type confAdd struct{ X, Y *tensor.Tensor }

var (
	errConfEmpty = errors.New("nothing was said")

	confNothing  = NewMethod[struct{}, struct{}]("conf.Nothing")
	confScalar   = NewMethod[confScalars, confScalars]("conf.Scalars")
	confList     = NewMethod[confLists, confLists]("conf.Lists")
	confAny      = NewMethod[any, any]("conf.Any")
	confEcho     = NewMethod[*tensor.Tensor, *tensor.Tensor]("conf.Echo")
	confSum      = NewMethod[confAdd, *tensor.Tensor]("conf.Add")
	confMay      = NewMethod[confOptional, confOptional]("conf.Optional")
	confFail     = NewMethod[string, struct{}]("conf.Fail")
	confPanic    = NewMethod[struct{}, struct{}]("conf.Panic")
	confSmall    = NewMethod[int8, int8]("conf.Small")
	confSlow     = NewMethod[struct{}, struct{}]("conf.Slow")
	confSums     = NewStream[int64, int64]("conf.Sums")
	confMissing  = NewStream[int64, int64]("conf.Missing")
	confMaker    = NewMaker[string, *int]("conf.Maker")
	confHandlers = []Option{
		Serve(confNothing, same[struct{}]), Serve(confScalar, same[confScalars]), Serve(confList, same[confLists]), Serve(confAny, same[any]),
		Serve(confEcho, same[*tensor.Tensor]), Serve(confMay, same[confOptional]), Serve(confSmall, same[int8]),
		Serve(confSum, func(_ context.Context, in confAdd) (*tensor.Tensor, error) { return in.X.Add(in.Y), nil }),
		Serve(confFail, func(_ context.Context, why string) (struct{}, error) {
			if why == "" {
				return struct{}{}, errConfEmpty
			}
			return struct{}{}, errors.New(why)
		}),
		Serve(confPanic, func(_ context.Context, in struct{}) (struct{}, error) {
			var none []struct{}
			return none[len(none)], nil
		}),
		Serve(confSlow, func(ctx context.Context, in struct{}) (struct{}, error) {
			<-ctx.Done()
			return in, ctx.Err()
		}),
		ServeStream(confSums, func(ctx context.Context, s *Stream[int64, int64]) error {
			var sum int64
			for v, err := range s.All(ctx) {
				if err != nil {
					return err
				}
				if v < 0 {
					return fmt.Errorf("%d is negative", v)
				}
				sum += v
				if err := s.Send(ctx, sum); err != nil {
					return err
				}
			}
			return nil
		}),
		ServeMaker(confMaker, func(context.Context, string) (*int, error) { return nil, nil }),
		WithError("conf.empty", errConfEmpty),
	}
)

func same[T any](_ context.Context, v T) (T, error) { return v, nil }

// TestConformance plays one script by the Go client and by the Python client:
// both must see the same.
func TestConformance(t *testing.T) {
	data, err := os.ReadFile("testdata/conformance.json")
	if err != nil {
		t.Fatal(err)
	}
	var s script
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&s); err != nil {
		t.Fatal(err)
	}
	t.Run("Go", func(t *testing.T) {
		agenttest.Over(t, func(t *testing.T, transport string) {
			a := agents(t, transport, 2, confHandlers...)
			for _, c := range s.Cases {
				if err := c.play(a[0].PeerRank(1)); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			}
		})
	})
	t.Run("Python", func(t *testing.T) {
		python := findPython(t, "numpy")
		a := agents(t, "tcp", 1, confHandlers...)
		playPython(t, python, a[0].Addr())
		t.Run("torch", func(t *testing.T) { playPython(t, findPython(t, "numpy", "torch"), a[0].Addr(), "--tensors", "torch") })
		t.Run("tls", func(t *testing.T) {
			playPython(t, findPython(t, "numpy", "cohort.tls"), a[0].Addr(), "--tls")
		})
	})
}

// findPython returns a Python that has modules, or skips.
func findPython(t *testing.T, modules ...string) string {
	t.Helper()
	candidates := []string{"python3", "/usr/bin/python3"}
	if *pythonFlag != "" {
		candidates = []string{*pythonFlag}
	}
	for _, p := range candidates {
		cmd := exec.Command(p, "-B", "-c", "import "+strings.Join(modules, ", "))
		cmd.Dir = "../clients/python"
		if cmd.Run() == nil {
			return p
		}
	}
	t.Skipf("none of %v has %v (Debian: python3-numpy, python3-torch; cohort.tls wants pyOpenSSL)", candidates, modules)
	return ""
}

func playPython(t *testing.T, python, addr string, more ...string) {
	t.Helper()
	client, err := filepath.Abs("../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"-B", filepath.Join(client, "conformance.py"), addr, "testdata/conformance.json"}, more...)...)
	cmd.Env = append(os.Environ(), "COHORT_TOKEN="+agenttest.Token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	t.Logf("%s: %s", python, bytes.TrimSpace(out))
}

// TestPythonClient runs the Python client's own tests, of agents that lie.
func TestPythonClient(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), findPython(t, "numpy"), "-B", "-m", "unittest", "discover", "-s", "tests")
	cmd.Dir = "../clients/python"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// play returns what is wrong.
func (c *scriptCase) play(p *Peer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if c.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, time.Duration(c.Timeout*float64(time.Second)))
		defer end()
	}
	var out any
	var got []any
	var err error
	if c.Send != nil && c.Raw { // a stream of other types under the same name
		var s *Stream[string, int64]
		if s, err = NewStream[string, int64](c.Method).Open(ctx, p); err == nil {
			_, err = s.Recv(ctx)
			s.Close()
		}
	} else if c.Send != nil {
		got, err = c.converse(ctx, p)
	} else {
		out, err = c.call(ctx, p)
	}
	var e *Error
	switch {
	case c.Error == "" && err != nil:
		return err
	case c.Error != "" && !errors.As(err, &e):
		return fmt.Errorf("gave %v and the error %v, want one of kind %q", out, err, c.Error)
	case c.Error != "" && (string(e.Kind) != c.Error || !strings.Contains(e.Error(), c.Says)):
		return fmt.Errorf("the error %w is of kind %q, want %q with %q", err, e.Kind, c.Error, c.Says)
	case c.Code != "" && !errors.Is(err, errConfEmpty):
		return fmt.Errorf("the error %w is not %q", err, errConfEmpty)
	case c.Error == "" && c.Send == nil && jsonOf(out) != jsonOf(c.Out):
		return fmt.Errorf("gave %s, want %s", jsonOf(out), jsonOf(c.Out))
	case len(got)+len(c.Recv) > 0 && jsonOf(got) != jsonOf(c.Recv):
		return fmt.Errorf("the stream gave %s, want %s", jsonOf(got), jsonOf(c.Recv))
	}
	return nil
}

func (c *scriptCase) call(ctx context.Context, p *Peer) (any, error) {
	if c.Raw && c.Error == "" {
		return callAs[confOptional, confOptional](ctx, p, c) // what Go leaves out
	}
	if c.Raw { // a method of other types under the same name
		return callAs[map[string]int64, any](ctx, p, &scriptCase{Method: c.Method, In: map[string]any{}})
	}
	switch c.Method {
	case "conf.Scalars":
		return callAs[confScalars, confScalars](ctx, p, c)
	case "conf.Lists":
		return callAs[confLists, confLists](ctx, p, c)
	case "conf.Any":
		return callAs[any, any](ctx, p, c)
	case "conf.Echo":
		return callAs[*tensor.Tensor, *tensor.Tensor](ctx, p, c)
	case "conf.Add":
		return callAs[confAdd, *tensor.Tensor](ctx, p, c)
	case "conf.Fail":
		return callAs[string, struct{}](ctx, p, c)
	}
	return callAs[struct{}, struct{}](ctx, p, c)
}

func callAs[A, R any](ctx context.Context, p *Peer, c *scriptCase) (any, error) {
	var in A
	if err := fromScript(c.In, reflect.ValueOf(&in).Elem()); err != nil {
		return nil, err
	}
	out, err := NewMethod[A, R](c.Method).Call(ctx, p, in)
	if err != nil {
		return nil, err
	}
	return toScript(reflect.ValueOf(&out).Elem()), nil
}

func (c *scriptCase) converse(ctx context.Context, p *Peer) (got []any, err error) {
	m := confSums
	if c.Method != m.Name() {
		m = confMissing
	}
	s, err := m.Open(ctx, p)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for _, v := range c.Send {
		n, err := v.(json.Number).Int64()
		if err != nil {
			return nil, err
		}
		if err := s.Send(ctx, n); err != nil {
			break // the agent has ended it: Recv says why
		}
	}
	s.CloseSend()
	for {
		v, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return got, nil
		} else if err != nil {
			return got, err
		}
		got = append(got, v)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	var again any
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&again); err != nil { // numbers as float64: 7 and 7.0 are one
		return err.Error()
	}
	b, _ = json.Marshal(again)
	return string(b)
}

// fromScript makes a Go value of one of the script.
func fromScript(v any, to reflect.Value) error {
	m, _ := v.(map[string]any)
	switch to.Interface().(type) {
	case *tensor.Tensor:
		if v != nil {
			to.Set(reflect.ValueOf(scriptTensor(m)))
		}
		return nil
	case time.Time:
		when, err := time.Parse(time.RFC3339Nano, m["$time"].(string))
		to.Set(reflect.ValueOf(when))
		return err
	case []byte:
		raw, err := hex.DecodeString(m["$bytes"].(string))
		to.SetBytes(raw)
		return err
	}
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			if err := fromScript(m[to.Type().Field(i).Name], to.Field(i)); err != nil {
				return err
			}
		}
	case reflect.Pointer:
		if v != nil {
			to.Set(reflect.New(to.Type().Elem()))
			return fromScript(v, to.Elem())
		}
	case reflect.Slice, reflect.Array:
		list, _ := v.([]any)
		if m != nil {
			list = m["data"].([]any)
		}
		if to.Kind() == reflect.Slice {
			to.Set(reflect.MakeSlice(to.Type(), len(list), len(list)))
		}
		for i, x := range list {
			if err := fromScript(x, to.Index(i)); err != nil {
				return err
			}
		}
	default: // what JSON has, too
		return json.Unmarshal([]byte(mustJSON(v)), to.Addr().Interface())
	}
	return nil
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func scriptTensor(m map[string]any) *tensor.Tensor {
	var shape []int
	for _, d := range m["shape"].([]any) {
		n, _ := d.(json.Number).Int64()
		shape = append(shape, int(n))
	}
	data := m["data"].([]any)
	flat := tensor.New(tensor.CPU(), tensor.Float64, len(data))
	for i, x := range data {
		f, _ := x.(json.Number).Float64()
		flat.Narrow(0, i, 1).Fill(f)
	}
	return flat.Reshape(shape...).To(scriptTypes[m["$tensor"].(string)])
}

var scriptTypes = map[string]tensor.DType{"float32": tensor.Float32, "float64": tensor.Float64, "float16": tensor.Float16,
	"int64": tensor.Int64, "int32": tensor.Int32, "int8": tensor.Int8, "uint8": tensor.Uint8, "bool": tensor.Bool}

// toScript makes a value of the script of a Go one.
func toScript(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case nil:
		return nil
	case *tensor.Tensor:
		if x == nil {
			return nil
		}
		values := make([]float64, x.NumElems())
		flat := x.To(tensor.Float64).Reshape(len(values))
		for i := range values {
			values[i] = flat.Narrow(0, i, 1).Item()
		}
		return map[string]any{"$tensor": x.DType().String(), "shape": append([]int{}, x.Shape()...), "data": values}
	case time.Time:
		return map[string]any{"$time": x.Format(time.RFC3339Nano)}
	case []byte:
		return map[string]any{"$bytes": hex.EncodeToString(x)}
	}
	switch v.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			out[v.Type().Field(i).Name] = toScript(v.Field(i))
		}
		return out
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return toScript(v.Elem())
	case reflect.Map:
		out := map[string]any{}
		for _, k := range v.MapKeys() {
			out[fmt.Sprint(k.Interface())] = toScript(v.MapIndex(k))
		}
		return out
	case reflect.Slice, reflect.Array:
		out := []any{}
		for i := range v.Len() {
			out = append(out, toScript(v.Index(i)))
		}
		if k := v.Type().Elem().Kind(); v.Kind() == reflect.Slice && (k == reflect.Int64 || k == reflect.Float32) {
			return map[string]any{"$numbers": v.Type().Elem().String(), "data": out}
		}
		return out
	}
	return v.Interface()
}
