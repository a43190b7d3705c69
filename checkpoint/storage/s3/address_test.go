// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// TestAddress: what an address and the environment say, and what is refused. No error
// shows a secret.
func TestAddress(t *testing.T) {
	for _, tc := range []struct {
		address string
		env     string // NAME=value, separated by blanks
		want    string // bucket prefix endpoint region part, or an error's words
	}{
		{"s3://runs/a/b", "", "runs a/b https://s3.amazonaws.com - 16777216"},
		{"s3://runs", "AWS_REGION=eu-west-1", "runs - https://s3.amazonaws.com eu-west-1 16777216"},
		{"s3://runs/", "AWS_DEFAULT_REGION=eu-west-2", "runs - https://s3.amazonaws.com eu-west-2 16777216"},
		{"s3://runs/a/?region=us-west-1", "AWS_REGION=eu-west-1 AWS_DEFAULT_REGION=x", "runs a https://s3.amazonaws.com us-west-1 16777216"},
		{"s3://runs/a?endpoint=http://127.0.0.1:9000&part=64MiB", "AWS_ENDPOINT_URL=http://other", "runs a http://127.0.0.1:9000 us-east-1 67108864"},
		{"s3://runs/a?endpoint=minio.example.org&part=6000000", "", "runs a https://minio.example.org us-east-1 6000000"},
		{"s3://runs/a", "AWS_ENDPOINT_URL=http://one AWS_ENDPOINT_URL_S3=http://two:1", "runs a http://two:1 us-east-1 16777216"},
		{"s3://runs/a%20b%23", "", "runs a b# https://s3.amazonaws.com - 16777216"},
		{"s3://KEY:h1dden@runs/a", "", "has no credentials"},
		{"s3://h1dden%zz/a", "", "this one cannot be read"},
		{"http://runs/a", "", "begins with s3://, not with"},
		{"s3:///a", "", `"" is no name for a bucket`},
		{"s3://Runs_/a", "", `"Runs_" is no name for a bucket`},
		{"s3://runs/a/../b", "", "is no name for a file"},
		{"s3://runs/a#b", "", "write # in a prefix as %23"},
		{"s3://runs/a?acces=1", "", `no parameter "acces": there are endpoint, region, part, commit, anonymous`},
		{"s3://runs/a?key=h1dden", "", `no parameter "key"`},
		{"s3://runs/a?region=x&endpoint=h1dden:h1dden@host", "", "must be http://HOST:PORT"},
		{"s3://runs/a?part=4MiB", "", "from 5MiB to 1GiB"},
		{"s3://runs/a?part=2GiB", "", "from 5MiB to 1GiB"},
		{"s3://runs/a?part=-64MiB", "", "from 5MiB to 1GiB"},
		{"s3://runs/a?part=99999999999999999999", "", "from 5MiB to 1GiB"},
		{"s3://runs/a?commit=rename", "", "must be condition or listing"},
		{"s3://runs/a?anonymous=yes", "", "must be true or false"},
		{"s3://runs/a?region=a&region=b", "", "stands there 2 times"},
		{"s3://runs/a?endpoint=ftp://host", "", "must be http://HOST:PORT"},
		{"s3://runs/a?endpoint=http://host/path", "", "must be http://HOST:PORT"},
		{"s3://runs/a?endpoint=http://KEY:h1dden@host", "", "must be http://HOST:PORT"},
	} {
		lookup := func(v envvar.Var) (string, bool) {
			for _, setting := range strings.Fields(tc.env) {
				if value, ok := strings.CutPrefix(setting, string(v)+"="); ok {
					return value, true
				}
			}
			return "", false
		}
		p, err := parseAddress(tc.address, lookup)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "h1dden") {
				t.Errorf("%s: %v", tc.address, err)
			}
			continue
		}
		dash := func(s string) string {
			if s == "" {
				return "-"
			}
			return s
		}
		got := strings.Join([]string{p.bucket, dash(p.prefix), p.endpoint.String(), dash(p.region), strconv.FormatInt(p.partBytes, 10)}, " ")
		if got != tc.want {
			t.Errorf("%s: %s, not %s", tc.address, got, tc.want)
		}
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"s3://runs/a/b?endpoint=http://h:1&part=64MiB&commit=listing&anonymous=true", "s3://r/%2e%2e/a", "s3://a:b@c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		p, err := parseAddress(address, func(envvar.Var) (string, bool) { return "", false })
		if err != nil {
			return
		}
		if p.bucket == "" || p.endpoint == nil || p.partBytes < minPartBytes || p.partBytes > maxPartBytes || strings.HasPrefix(p.prefix, "/") || strings.Contains("/"+p.prefix+"/", "/../") {
			t.Errorf("%q gives %+v", address, p)
		}
	})
}
