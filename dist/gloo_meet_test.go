// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// little are steps that show that a group works.
func little(group int) []mixedStep {
	return []mixedStep{
		{c: one{op: operationNamed("all_reduce"), dtype: tensor.Float32, layout: "dense", count: 70_001}, group: group},
		{c: one{op: operationNamed("all_gather"), dtype: tensor.Int64, layout: "dense", count: 3}, group: group},
		{c: one{op: operationNamed("send"), dtype: tensor.Uint8, layout: "dense", count: 5}, group: group},
		{c: one{op: operationNamed("monitored_barrier"), dtype: tensor.Uint8}, group: group},
	}
}

// TestPyTorchMeets has ranks meet in all ways that PyTorch's do.
func TestPyTorchMeets(t *testing.T) {
	steps := append(little(0), mixedStep{ranks: []int{0, 2}})
	steps = append(steps, little(1)...)
	for _, tc := range []struct {
		name  string
		young bool // PyTorch 2 alone has it
		fresh bool // PyTorch looks at it once
		env   string
		setUp func(t *testing.T, m *mixedJob)
	}{
		{"file", false, false, "", func(t *testing.T, m *mixedJob) { m.url = "file://" + filepath.Join(t.TempDir(), "store") }},
		{"launcher's store", false, false, "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2", func(t *testing.T, m *mixedJob) {
			s, err := store.ListenPyTorch("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			host, port, err := net.SplitHostPort(s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range []string{envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port)} {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
				m.env[name] = value
			}
			m.url = "env://"
		}},
		{"connected late", true, true, "TORCH_GLOO_LAZY_INIT=1", nil},
		{"numbered by rank", true, true, "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER=1", nil},
		{"in the store together", true, false, "TORCH_DIST_INIT_BARRIER=1", nil},
		{"by several keys at once", true, true, "GLOO_ENABLE_STORE_V2_API=1", nil},
		{"named interface", false, false, "GLOO_SOCKET_IFNAME=lo", nil},
		{"two interfaces", false, false, "GLOO_SOCKET_IFNAME=lo,lo", nil},
		{"without libuv", true, false, "USE_LIBUV=0", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachPython(t, func(t *testing.T, p *python) {
				if tc.young && p.old() {
					t.Skip("PyTorch 1.13 has no such way")
				}
				if tc.fresh && tc.name != "connected late" && !*wholePyTorch {
					t.Skip("takes new processes: run it with -pytorch.product")
				}
				for _, goes := range [][]int{{1, 2}, {0}} {
					if tc.fresh && goes[0] == 0 && !*wholePyTorch {
						break
					}
					m := mixedJob{python: p, size: 3, goes: goes, env: map[string]string{}, fresh: tc.fresh}
					for v := range strings.FieldsSeq(tc.env) {
						name, value, _ := strings.Cut(v, "=")
						t.Setenv(name, value)
						m.env[name] = value
					}
					if tc.setUp != nil {
						tc.setUp(t, &m)
					}
					m.both(t, steps)
				}
			})
		})
	}
}

// TestGlooInTLS has ranks encrypt what they say, with a certificate for each: Go ranks
// among themselves, and PyTorch's where it is built for that (Debian's and that of the
// Python package are not).
func TestGlooInTLS(t *testing.T) {
	dir := t.TempDir()
	ca := writeCertificates(t, dir, 2)
	py := map[string]string{}
	for _, v := range []string{envvar.GlooTransport.Assign("TCP_TLS"), envvar.GlooTLSCAFile.Assign(ca),
		envvar.GlooTLSKey.Assign(filepath.Join(dir, "0.key")), envvar.GlooTLSCert.Assign(filepath.Join(dir, "0.crt"))} {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
		py[name] = strings.ReplaceAll(value, "/0.", "/1.")
	}
	for _, version := range []string{"1.13", "2.15"} {
		t.Run("go-"+version, func(t *testing.T) {
			mixedJob{size: 3, goes: []int{0, 1, 2}, opts: []Option{WithPyTorch(version)}, url: "file://" + filepath.Join(t.TempDir(), "store")}.both(t, little(0))
		})
	}
	eachPython(t, func(t *testing.T, p *python) {
		var steps []pyStep
		for _, s := range little(0) {
			steps = append(steps, s.py())
		}
		o := mixedJob{python: p, size: 2, goes: []int{1}, env: py, fresh: true}.run(t, steps, func(ctx context.Context, g *Group) error { return playSteps(ctx, g, little(0)) })
		if strings.Contains(o.answers[0].Error, "unsupported gloo device") {
			t.Skipf("the Gloo of %v is built without TLS", p)
		}
		if err := o.err(); err != nil {
			t.Error(err)
		}
	})
}

// TestGlooOfGoRanks is a job with the backend gloo in which all ranks are Go's: no
// Python is needed for that.
func TestGlooOfGoRanks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, url string
		opts      []Option
		young     bool
	}{
		{"store", "", nil, true},
		{"file", "file://" + filepath.Join(t.TempDir(), "store"), nil, true},
		{"as 1.13", "file://" + filepath.Join(t.TempDir(), "store"), []Option{WithPyTorch("1.13")}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &python{version: "1.13"}
			if tc.young {
				p.version = "2.15"
			}
			rng := rand.New(rand.NewPCG(*pytorchSeed, 0))
			steps := append(p.sample(rng, 0), mixedStep{ranks: []int{2, 0}}, mixedStep{ranks: []int{1}})
			steps = append(steps, p.sample(rng, 1)...)
			mixedJob{size: 3, goes: []int{0, 1, 2}, opts: tc.opts, url: tc.url}.both(t, steps)
		})
	}
}

// writeCertificates makes an authority and n certificates that it has signed, as PEM
// files in dir: 0.crt, 0.key and so on. It returns the authority's file.
func writeCertificates(t *testing.T, dir string, n int) (ca string) {
	t.Helper()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var authority *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i := -1; i < n; i++ {
		key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 2)), Subject: pkix.Name{CommonName: fmt.Sprint("rank ", i)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		if authority == nil {
			c.IsCA, c.KeyUsage, c.ExtKeyUsage = true, x509.KeyUsageCertSign, nil
			authority, signer = c, key
		}
		der, err := x509.CreateCertificate(cryptorand.Reader, c, authority, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		if i < 0 {
			ca = write("ca.crt", "CERTIFICATE", der)
			continue
		}
		write(fmt.Sprint(i, ".crt"), "CERTIFICATE", der)
		if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			t.Fatal(err)
		}
		write(fmt.Sprint(i, ".key"), "PRIVATE KEY", der)
	}
	return ca
}

// TestPyTorchNativeGroup has the Go ranks of a job make a group of their own, of which
// PyTorch's know nothing, and use both.
func TestPyTorchNativeGroup(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		steps := append(little(0), mixedStep{ranks: []int{0, 1, 2, 3}})
		steps = append(steps, little(1)...)
		var py []pyStep
		for _, s := range steps {
			py = append(py, s.py())
		}
		o := mixedJob{python: p, size: 4, goes: []int{0, 1, 3}}.run(t, py, func(ctx context.Context, g *Group) error {
			if theirs, err := g.PyTorchRanks(ctx); err != nil || !slices.Equal(theirs, []int{2}) {
				return fmt.Errorf("PyTorch's ranks are %v, %w; want 2", theirs, err)
			}
			own, err := g.NewGroup(ctx, []int{3, 0, 1}, WithBackend("native"))
			if err != nil {
				return err
			}
			if theirs, err := own.PyTorchRanks(ctx); err != nil || len(theirs) > 0 {
				return fmt.Errorf("PyTorch's ranks in a group of Go's are %v, %w", theirs, err)
			}
			if own.silence != 0 { // none was given
				return fmt.Errorf("the group of Go ranks gives ranks up that are silent for %v", own.silence)
			}
			if own.Transport() == "gloo" || own.Ranks()[0] != 3 {
				return fmt.Errorf("the group of Go ranks is %v by %s", own.Ranks(), own.Transport())
			}
			rng := rand.New(rand.NewPCG(*pytorchSeed, 0))
			for _, name := range []string{"all_reduce", "objects", "reduce_scatter_list", "monitored_barrier"} {
				c := one{op: operationNamed(name), dtype: tensor.Float32, layout: "dense", count: 1 + rng.IntN(5000), parts: "uneven"}
				if err := c.run(ctx, own); err != nil {
					return err
				}
			}
			half, err := own.Split(ctx, own.Rank()%2, 0)
			if err != nil {
				return err
			}
			if err := half.Barrier(ctx); err != nil {
				return err
			}
			return playSteps(ctx, g, steps)
		})
		if err := o.err(); err != nil {
			t.Error(err)
		}
	})
}

// TestPyTorchStore has both sides share the store that PyTorch calls the default one.
func TestPyTorchStore(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for place := range 2 {
			o := mixedJob{python: p, size: 2, goes: []int{place}}.run(t, []pyStep{{Op: "share", Text: "a text"}}, func(ctx context.Context, g *Group) error {
				if err := g.Store().Set(ctx, "from Go", []byte("a text")); err != nil {
					return err
				}
				if got, err := g.Store().Get(ctx, "from PyTorch"); err != nil || string(got) != "a text" {
					return fmt.Errorf("got %q, %w", got, err)
				}
				return nil
			})
			if err := o.err(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPyTorchNoNativeGroup asks for a group of Go ranks with one that is none, and
// waits for no limit.
func TestPyTorchNoNativeGroup(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		o := mixedJob{python: p, size: 2, goes: []int{0}}.run(t, nil, func(ctx context.Context, g *Group) error {
			_, err := g.NewGroup(ctx, []int{0, 1}, WithBackend("native"))
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "rank 1") {
				return fmt.Errorf("got %v, want that rank 1 is no Go rank", err)
			}
			return nil
		})
		if err := o.err(); err != nil {
			t.Error(err)
		}
	})
}
