// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cohort-ml/cohort/dist/store/etcd"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch/rendezvous"
)

// joinsEtcd makes the machines meet in an etcd cluster.
func (f *runFlags) joinsEtcd(m *rendezvous.Meeting, conf map[string]string) error {
	if f.endpoint == "" {
		return fmt.Errorf("%s: give --rdzv-endpoint HOST:PORT, of one or more members of the cluster, with commas between them", f.given("rdzv-backend"))
	}
	a := etcdAccess{conf: conf}
	protocol, _ := a.take("protocol")
	if protocol = strings.ToLower(protocol); protocol != "" && protocol != "http" && protocol != "https" {
		return fmt.Errorf("--rdzv-conf protocol=%s: there are http and https", protocol)
	}
	var endpoints []string
	for one := range strings.SplitSeq(f.endpoint, ",") {
		one = strings.TrimSpace(one)
		scheme, rest, ok := strings.Cut(one, "://")
		switch {
		case !ok:
			scheme, rest = protocol, one
		case scheme != "http" && scheme != "https":
			return f.badEndpoint(fmt.Errorf("%s: the members of etcd are reached by http or https", one))
		case protocol != "" && scheme != protocol:
			return fmt.Errorf("--rdzv-conf protocol=%s and --rdzv-endpoint %s contradict each other: leave one out", protocol, one)
		}
		at, err := rendezvous.Endpoint(rest, 2379)
		if err != nil {
			return f.badEndpoint(err)
		}
		if m.Via == "" {
			m.Via = at
		}
		if scheme == "https" {
			a.secure = true
			at = "https://" + at
		}
		endpoints = append(endpoints, at)
	}
	o, err := a.options()
	if err != nil {
		return err
	}
	m.Open = func(ctx context.Context) (*rendezvous.Opened, error) {
		s, end, err := etcd.Dial(ctx, endpoints, "cohort", o)
		if err != nil {
			return nil, err
		}
		return &rendezvous.Opened{Store: s, Close: end, Lasting: true}, nil
	}
	return nil
}

// etcdAccess is how a launcher proves who it is, from --rdzv-conf.
type etcdAccess struct {
	conf   map[string]string
	secure bool // a member is reached by https
}

// take removes a setting that has these names, those of PyTorch's backends etcd-v2 and etcd.
func (a *etcdAccess) take(names ...string) (value, name string) {
	for _, n := range names {
		if v := a.conf[n]; v != "" && value == "" {
			value, name = v, n
			delete(a.conf, n) // a second name stays, and is refused
		}
	}
	return value, name
}

// options reads certificates and password.
func (a *etcdAccess) options() (o etcd.Options, err error) {
	if a.conf["password"] != "" {
		return o, fmt.Errorf("--rdzv-conf password=…: all users of a machine see arguments: set %s, or give password_file=PATH", envvar.EtcdPassword)
	}
	if o.TLS, err = a.certificates(); err != nil {
		return o, err
	}
	o.User, _ = a.take("user")
	path, _ := a.take("password_file")
	o.Password = envvar.EtcdPassword.Text()
	switch {
	case path != "" && o.Password != "":
		return o, fmt.Errorf("--rdzv-conf password_file=%s and %s both give a password: leave one out", path, envvar.EtcdPassword)
	case path != "":
		if o.Password, err = readPassword(path); err != nil {
			return o, fmt.Errorf("--rdzv-conf password_file=%s: %w", path, err)
		}
	}
	switch {
	case o.User == "" && path != "":
		return o, fmt.Errorf("--rdzv-conf password_file=%s: whose password is it? add user=NAME", path)
	case o.User == "" && o.Password != "":
		return o, fmt.Errorf("%s is set: whose password is it? give --rdzv-conf user=NAME, or unset it", envvar.EtcdPassword)
	case o.User != "" && o.Password == "":
		return o, fmt.Errorf("--rdzv-conf user=%s has no password: set %s, or add password_file=PATH", o.User, envvar.EtcdPassword)
	}
	return o, nil
}

// certificates are of the authority, and of this launcher.
func (a *etcdAccess) certificates() (*tls.Config, error) {
	ca, caName := a.take("ca_cert", "cacert")
	cert, certName := a.take("ssl_cert", "cert")
	key, keyName := a.take("ssl_cert_key", "key")
	switch {
	case ca == "" && cert == "" && key == "":
		return nil, nil
	case cert == "" && key != "":
		return nil, fmt.Errorf("--rdzv-conf %s=%s: it is the key of no certificate: add ssl_cert=PATH", keyName, key)
	case !a.secure:
		name, path := caName, ca
		if ca == "" {
			name, path = certName, cert
		}
		return nil, fmt.Errorf("--rdzv-conf %s=%s: no member is reached by TLS: add protocol=https, or give --rdzv-endpoint https://HOST:PORT", name, path)
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := readSmall(ca)
		if err != nil {
			return nil, fmt.Errorf("--rdzv-conf %s: %w", caName, err)
		}
		if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--rdzv-conf %s=%s: the file has no certificate in PEM", caName, ca)
		}
	}
	if cert != "" {
		text, err := readSmall(cert)
		if err != nil {
			return nil, fmt.Errorf("--rdzv-conf %s: %w", certName, err)
		}
		secret := text // a file may have both
		if key != "" {
			if secret, err = readSmall(key); err != nil {
				return nil, fmt.Errorf("--rdzv-conf %s: %w", keyName, err)
			}
		}
		pair, err := tls.X509KeyPair(text, secret)
		if err != nil {
			return nil, fmt.Errorf("--rdzv-conf %s=%s: %w", certName, cert, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// readPassword reads a file with a password, which its owner alone can read.
func readPassword(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", errors.Unwrap(err)
	case info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("others than its owner can use this file (mode %04o): run `chmod 600 %s`", info.Mode().Perm(), path)
	}
	text, err := readSmall(path)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" || strings.ContainsAny(password, "\r\n") {
		return "", errors.New("want a file with one line, the password")
	}
	return password, nil
}

// readSmall reads a file of a certificate, key or password.
func readSmall(path string) ([]byte, error) {
	const most = 1 << 20
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return text, err
}
