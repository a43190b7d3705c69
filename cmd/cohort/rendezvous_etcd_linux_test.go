// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store/etcd"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// pemFile writes blocks to a file that its owner alone can read.
func pemFile(t *testing.T, name string, blocks ...*pem.Block) string {
	t.Helper()
	var text []byte
	for _, b := range blocks {
		text = append(text, pem.EncodeToMemory(b)...)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEtcdWithSecrets: launchers meet in an etcd that wants certificates of its clients, and a
// password, by settings with the names of PyTorch's two backends. The ranks do not get the
// password. What does not fit is refused.
func TestEtcdWithSecrets(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{Organization: []string{"cohort"}}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public, secret := &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}
	cert, key, both := pemFile(t, "cert.pem", public), pemFile(t, "key.pem", secret), pemFile(t, "both.pem", secret, public)

	at := freeEndpoint(t)
	startEtcd(t, "https://"+at, freeEndpoint(t), func(start func()) { start() }, "--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", cert)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	conf.RootCAs.AppendCertsFromPEM(pem.EncodeToMemory(public))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, end, err := etcd.Dial(ctx, []string{"https://" + at}, "up", etcd.Options{TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	end()
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
	defer h.CloseIdleConnections()
	for _, c := range [][2]string{
		{"user/add", `{"name":"root","password":"top-secret"}`}, {"role/add", `{"name":"root"}`},
		{"user/grant", `{"user":"root","role":"root"}`}, {"enable", `{}`},
	} {
		r, err := h.Post("https://"+at+"/v3/auth/"+c[0], "application/json", strings.NewReader(c[1]))
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatal(c[0], r, err)
		}
		_ = r.Body.Close()
	}

	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("top-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	token := envvar.Token.Assign(transport.NewToken().Text())
	variable := envvar.EtcdPassword.Assign("top-secret")
	run := func(env []string, endpoint, conf string) *job {
		return start(t, append(env, token), "run", "--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-id", "secrets", "--rdzv-endpoint", endpoint,
			"--rdzv-conf", conf, "/bin/sh", "-c", `echo "rank $RANK of $WORLD_SIZE${COHORT_ETCD_PASSWORD}"`)
	}
	all := ""
	for _, j := range []*job{
		run([]string{variable}, at, "protocol=https,ca_cert="+cert+",ssl_cert="+cert+",ssl_cert_key="+key+",user=root"),
		run(nil, "https://"+at, "cacert="+cert+",cert="+both+",user=root,password_file="+password),
	} {
		code := j.wait(t)
		stdout, stderr := j.output()
		if all += stdout; code != 0 {
			t.Errorf("code %d, %q, %q", code, stdout, stderr)
		}
	}
	if !strings.Contains(all, "rank 0 of 2\n") || !strings.Contains(all, "rank 1 of 2\n") {
		t.Errorf("ranks: %q", all)
	}

	loose := pemFile(t, "loose")
	if err := os.Chmod(loose, 0o644); err != nil {
		t.Fatal(err)
	}
	good := "protocol=https,ca_cert=" + cert + ",ssl_cert=" + both
	for name, c := range map[string]struct {
		env, at, conf string
		want          []string
	}{
		"wrong password":       {envvar.EtcdPassword.Assign("tip"), at, good + ",user=root", []string{`user "root"`, "invalid user ID or password"}},
		"unknown authority":    {variable, at, "protocol=https,user=root", []string{"unknown authority"}},
		"no certificate":       {variable, at, "protocol=https,user=root,ca_cert=" + cert, []string{"remote error: tls: "}},
		"in the arguments":     {"", at, good + ",user=root,password=top-secret", []string{"password=…", "COHORT_ETCD_PASSWORD"}},
		"no password":          {"", at, good + ",user=root", []string{"user=root has no password"}},
		"no user":              {variable, at, good, []string{"user=NAME"}},
		"two passwords":        {variable, at, good + ",user=root,password_file=" + password, []string{"both give a password"}},
		"a file for all":       {"", at, good + ",user=root,password_file=" + loose, []string{"chmod 600"}},
		"an empty file":        {"", at, good + ",user=root,password_file=/dev/null", []string{"one line"}},
		"no file":              {"", at, good + ",user=root,password_file=/no/file", []string{"password_file=/no/file: no such file"}},
		"two protocols":        {"", "http://" + at, "protocol=https", []string{"protocol=https", "http://" + at, "contradict"}},
		"another protocol":     {"", at, "protocol=ftp", []string{"protocol=ftp: there are http and https"}},
		"another scheme":       {"", "unix://" + at, "join_timeout=1", []string{"http or https"}},
		"without TLS":          {"", at, "ca_cert=" + cert, []string{"ca_cert=" + cert, "protocol=https"}},
		"a key alone":          {"", at, "protocol=https,key=" + key, []string{"key=" + key, "no certificate"}},
		"no PEM":               {"", at, "protocol=https,cacert=" + password, []string{"cacert=" + password, "no certificate in PEM"}},
		"a certificate no key": {"", at, "protocol=https,ssl_cert=" + cert, []string{"ssl_cert=" + cert}},
		"both names":           {"", at, "protocol=https,ca_cert=" + cert + ",cacert=" + cert, []string{"cacert="}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := c.env
			if env == "" {
				env = envvar.EtcdPassword.Assign("")
			}
			j := run([]string{env}, c.at, c.conf)
			code := j.wait(t)
			stdout, stderr := j.output()
			if code != 2 || stdout != "" || strings.Contains(stderr, "top-secret") {
				t.Errorf("code %d, %q, %q", code, stdout, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in %q", want, stderr)
				}
			}
		})
	}
}
