// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// LoadTLS returns what [Config].TLS wants, from the files that PyTorch's
// GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY, _CERT, _CA_FILE and _CA_PATH name, in PEM. Both
// sides show a certificate of that authority; its names are not looked at.
func LoadTLS(key, cert, caFile, caPath string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("gloo: the certificate %s with the key %s: %w", cert, key, err)
	}
	var files []string
	if caFile != "" {
		files = append(files, caFile)
	}
	if caPath != "" {
		entries, err := os.ReadDir(caPath)
		if err != nil {
			return nil, fmt.Errorf("gloo: the authorities in %s: %w", caPath, err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				files = append(files, filepath.Join(caPath, e.Name()))
			}
		}
	}
	authorities, found := x509.NewCertPool(), false
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("gloo: the authority %s: %w", f, err)
		}
		found = authorities.AppendCertsFromPEM(pem) || found
	}
	if !found {
		return nil, fmt.Errorf("gloo: no certificate of an authority in %q", files)
	}
	verify := func(raw [][]byte, _ [][]*x509.Certificate) error {
		var chain []*x509.Certificate
		for _, r := range raw {
			c, err := x509.ParseCertificate(r)
			if err != nil {
				return err
			}
			chain = append(chain, c)
		}
		if len(chain) == 0 {
			return errors.New("the peer shows no certificate")
		}
		between := x509.NewCertPool()
		for _, c := range chain[1:] {
			between.AddCert(c)
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{own},
		ClientAuth:   tls.RequireAnyClientCert,
		// Hosts are known by address, not by name: verify looks at the chain, which a
		// resumed session would pass by.
		InsecureSkipVerify:     true,
		VerifyPeerCertificate:  verify,
		SessionTicketsDisabled: true,
	}, nil
}
