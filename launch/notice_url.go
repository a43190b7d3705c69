// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// askPatience is how long a metadata service may take to answer. It is on the machine's
// own link.
const askPatience = 2 * time.Second

// noticeURL asks a metadata service.
type noticeURL struct {
	url    *url.URL
	client *http.Client
	token  string // without which AWS's service does not answer
}

func parseNoticeURL(text string) (*noticeURL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("notice URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("notice URL %s: give one that begins with http:// or https:// and a host", u.Redacted())
	}
	return &noticeURL{url: u, client: &http.Client{
		Timeout: askPatience,
		// The service belongs to this machine. No proxy may answer in its place.
		Transport: &http.Transport{MaxIdleConns: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}, nil
}

func (n *noticeURL) close() {
	if n != nil {
		n.client.CloseIdleConnections()
	}
}

// ask returns the text of the notice, if there is one.
func (n *noticeURL) ask(ctx context.Context) (text string, err error) {
	status, body, err := n.do(ctx, http.MethodGet, n.url, http.Header{"X-Aws-Ec2-Metadata-Token": {n.token}})
	if err == nil && status == http.StatusUnauthorized {
		if err = n.renew(ctx); err == nil {
			status, body, err = n.do(ctx, http.MethodGet, n.url, http.Header{"X-Aws-Ec2-Metadata-Token": {n.token}})
		}
	}
	if err != nil {
		return "", fmt.Errorf("notice URL %s cannot be asked: %w", n.url.Redacted(), err)
	}
	said, err := noticeIn(status, body)
	switch {
	case err != nil:
		return "", fmt.Errorf("notice URL %s: %w", n.url.Redacted(), err)
	case said == "":
		return "", nil
	}
	return fmt.Sprintf("%s says %s", n.url.Redacted(), said), nil
}

// renew fetches the token without which AWS's service does not answer.
func (n *noticeURL) renew(ctx context.Context) error {
	u := *n.url
	u.Path, u.RawPath, u.RawQuery = "/latest/api/token", "", ""
	status, body, err := n.do(ctx, http.MethodPut, &u, http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"21600"}})
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(body))
	if status != http.StatusOK || token == "" || strings.ContainsAny(token, "\r\n") {
		return fmt.Errorf("it wants a token (401), and %s answers %d", u.Redacted(), status)
	}
	n.token = token
	return nil
}

func (n *noticeURL) do(ctx context.Context, method string, u *url.URL, header http.Header) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return 0, nil, err
	}
	// Without these headers, Google's and Azure's services refuse to answer.
	req.Header.Set("Metadata-Flavor", "Google")
	req.Header.Set("Metadata", "true")
	for k, v := range header {
		if v[0] != "" {
			req.Header[k] = v
		}
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxNotice))
	return resp.StatusCode, body, err
}

// noticeIn returns the notice in an answer, by the rules of Notice.URL; empty if there is
// none.
func noticeIn(status int, body []byte) (string, error) {
	switch {
	case status == http.StatusNotFound || status == http.StatusNoContent:
		return "", nil
	case status < 200 || status > 299:
		return "", fmt.Errorf("it answers %d %s: want 200, or 404 while there is no notice", status, http.StatusText(status))
	}
	body = bytes.TrimSpace(body)
	switch strings.ToUpper(string(body)) {
	case "", "FALSE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE":
		return "", nil
	}
	var azure struct {
		Events *[]struct{ EventType, NotBefore string }
	}
	if json.Unmarshal(body, &azure) == nil && azure.Events != nil {
		for _, e := range *azure.Events {
			if e.EventType == "Preempt" || e.EventType == "Terminate" {
				return noticeText([]byte(e.EventType + " " + e.NotBefore)), nil
			}
		}
		return "", nil
	}
	// AWS answers with an object over several lines or in one.
	said := noticeText(bytes.Join(bytes.Fields(body), []byte(" ")))
	if said == "" {
		said = "something that cannot be shown"
	}
	return said, nil
}
