// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/envvar"
)

const (
	amazon = "https://s3.amazonaws.com"

	minPartBytes     = 5 << 20 // of all parts but the last, by the protocol
	defaultPartBytes = 16 << 20
	maxPartBytes     = 1 << 30
	maxParts         = 10_000
)

// The ways to commit.
const (
	CommitByCondition = "condition"
	CommitByListing   = "listing"
)

// place is what an address says.
type place struct {
	address   string // as the user gave it, without the parameters
	bucket    string
	prefix    string // without slashes at its ends
	endpoint  *url.URL
	region    string
	partBytes int64
	commit    string
	anonymous bool
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// parseAddress takes an address apart. lookup reads the environment.
func parseAddress(address string, lookup func(envvar.Var) (string, bool)) (place, error) {
	p := place{partBytes: defaultPartBytes}
	u, err := url.Parse(address)
	if err != nil {
		return p, fmt.Errorf("storage: an address of a bucket must be s3://BUCKET/PREFIX?endpoint=URL&region=NAME, and this one cannot be read") // err may quote a secret
	}
	mistake := func(format string, args ...any) error {
		// Without the query: somebody may have written a key into it.
		return fmt.Errorf("storage: s3://%s%s: %s", u.Host, u.Path, fmt.Sprintf(format, args...))
	}
	switch {
	case u.User != nil:
		return p, fmt.Errorf("storage: an address of a bucket has no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
	case u.Scheme != "s3":
		return p, fmt.Errorf("storage: an address of a bucket begins with s3://, not with %q", u.Scheme)
	case !bucketName.MatchString(u.Host):
		return p, mistake("%q is no name for a bucket: it must have 3 to 63 small letters, digits, dots and hyphens", u.Host)
	case u.Fragment != "":
		return p, mistake("what follows # is not understood: write # in a prefix as %%23")
	}
	p.bucket = u.Host
	p.prefix = strings.Trim(u.Path, "/")
	if p.prefix != "" {
		if err := storage.CheckName(p.prefix); err != nil {
			return p, err
		}
	}
	p.address = "s3://" + strings.TrimSuffix(p.bucket+"/"+p.prefix, "/")
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return p, mistake("the parameters cannot be read: write them as ?endpoint=URL&region=NAME")
	}
	known := []string{"endpoint", "region", "part", "commit", "anonymous"}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return p, mistake("there is no parameter %q: there are %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return p, mistake("the parameter %s stands there %d times", name, len(values))
		}
	}
	first := func(given string, vars ...envvar.Var) string {
		for _, v := range vars {
			if given == "" {
				given, _ = lookup(v)
			}
		}
		return given
	}
	p.region = first(query.Get("region"), envvar.AWSRegion, envvar.AWSDefaultRegion)
	endpoint := first(query.Get("endpoint"), envvar.AWSEndpointS3, envvar.AWSEndpoint)
	if endpoint == "" {
		endpoint = amazon
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	p.endpoint, err = url.Parse(endpoint)
	if err != nil || p.endpoint.Scheme != "http" && p.endpoint.Scheme != "https" || p.endpoint.Host == "" || strings.Trim(p.endpoint.Path, "/") != "" || p.endpoint.User != nil || p.endpoint.RawQuery != "" {
		return p, mistake("the endpoint must be http://HOST:PORT or https://HOST")
	}
	if p.region == "" && !p.isAmazon() {
		p.region = "us-east-1" // what servers without regions take
	}
	if s := query.Get("part"); s != "" {
		if p.partBytes, err = parseBytes(s); err != nil {
			return p, mistake("part is %q: it must be a number of bytes from 5MiB to 1GiB, such as 64MiB", s)
		}
	}
	switch p.commit = query.Get("commit"); p.commit {
	case "", CommitByCondition, CommitByListing:
	default:
		return p, mistake("commit is %q: it must be condition or listing", p.commit)
	}
	switch s := query.Get("anonymous"); s {
	case "", "false":
	case "true":
		p.anonymous = true
	default:
		return p, mistake("anonymous is %q: it must be true or false", s)
	}
	return p, nil
}

func parseBytes(s string) (int64, error) {
	unit := int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if digits, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = digits, bytes
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err == nil && (n*unit < minPartBytes || n*unit > maxPartBytes) {
		err = strconv.ErrRange
	}
	return n * unit, err
}

func (p *place) isAmazon() bool {
	host := p.endpoint.Hostname()
	return host == "amazonaws.com" || strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")
}

// Open returns the storage at an address, see the package's documentation. It
// sends nothing: a bucket that is not there is an error of the first request.
func Open(address string) (*Bucket, error) {
	p, err := parseAddress(address, envvar.Var.Lookup)
	if err != nil {
		return nil, err
	}
	transport, err := minio.DefaultTransport(p.endpoint.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w", p.address, err)
	}
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	transport.MaxIdleConnsPerHost = 64
	transport.WriteBufferSize, transport.ReadBufferSize = 256<<10, 256<<10
	client, err := minio.New(p.endpoint.Host, &minio.Options{
		Creds: p.credentials(), Secure: p.endpoint.Scheme == "https", Transport: transport, Region: p.region,
		MaxRetries: 1, // retry does it
	})
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w", p.address, err)
	}
	return &Bucket{
		client: client, core: minio.Core{Client: client}, place: p, commit: p.commit,
		pauses: defaultPauses, intentLife: time.Minute, doubts: map[string]bool{},
	}, nil
}

// credentials returns where the credentials come from. Nothing is read yet.
func (p *place) credentials() *credentials.Credentials {
	if p.anonymous {
		return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	}
	chain := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if p.isAmazon() {
		// Where there is no such service, an answer would not come.
		chain = append(chain, &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}})
	}
	return credentials.NewChainCredentials(chain)
}
