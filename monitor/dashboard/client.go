// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// maxAnswer is how many bytes of an answer a client reads.
const maxAnswer = 64 << 20

// Client knows what a server knows, as a page does, or, of directories, what a server would know.
type Client struct {
	url    *url.URL
	client *http.Client
	runs   *runs
	d      report.Data
}

// Dial returns a client of the server at an address with its token, as the job has printed it.
func Dial(address string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Query().Get("token") == "" {
		return nil, errors.New("dashboard: give the address with its token, as the job has printed it: http://HOST:PORT/?token=…")
	}
	return &Client{url: u, client: &http.Client{Timeout: writePatience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Open returns a client of runs in directories of this machine.
func Open(title string, dirs []string) *Client {
	return &Client{runs: newRuns(dirs, nil, nil), d: report.Data{Title: title}}
}

// Close ends the client.
func (c *Client) Close() {
	if c.runs != nil {
		c.runs.close()
		return
	}
	c.client.CloseIdleConnections()
}

// Ask asks for what is new, and returns everything that is known. The data are valid until the next call.
func (c *Client) Ask(ctx context.Context) (*report.Data, error) {
	if c.runs != nil {
		known := parseCursor(c.d.Cursor, len(c.runs.list))
		u := report.Data{Live: true, Now: history.At(time.Now())}
		c.runs.poll()
		u.Cursor = c.runs.add(&u, known).String()
		c.take(&u)
		return &c.d, nil
	}
	var update report.Data
	if err := c.get(ctx, "/updates", url.Values{"after": {c.d.Cursor}}, &update); err != nil {
		return nil, err
	}
	c.take(&update)
	return &c.d, nil
}

// get asks the server for a path.
func (c *Client) get(ctx context.Context, path string, query url.Values, to any) error {
	u := *c.url
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	q := u.Query()
	for name, of := range query {
		q[name] = of
	}
	u.RawQuery = q.Encode()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	answer, err := c.client.Do(ask)
	if err != nil {
		var with *url.Error // its text has the token
		if errors.As(err, &with) {
			err = with.Err
		}
		return fmt.Errorf("dashboard: ask %s: %w", c.url.Host, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return fmt.Errorf("dashboard: %s answers %s: %s", c.url.Host, answer.Status, plain(strings.TrimSpace(string(text)), 500))
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(to); err != nil {
		return fmt.Errorf("dashboard: %s does not answer as a dashboard of this version of Cohort: %w", c.url.Host, err)
	}
	return nil
}

// take adds an update to what is known, as the page does.
func (c *Client) take(u *report.Data) {
	for _, r := range u.Runs {
		if r.Index < 0 || r.Index > len(c.d.Runs) {
			continue
		}
		if r.Index == len(c.d.Runs) {
			c.d.Runs = append(c.d.Runs, r)
			continue
		}
		was := &c.d.Runs[r.Index]
		if was.Generation == r.Generation {
			r.Starts, r.Steps, r.Evaluations = append(was.Starts, r.Starts...), append(was.Steps, r.Steps...), append(was.Evaluations, r.Evaluations...)
			r.Saved, r.Notes, r.Lost = append(was.Saved, r.Saved...), append(was.Notes, r.Notes...), append(was.Lost, r.Lost...)
			r.Ranks, r.Values, r.Samples = append(was.Ranks, r.Ranks...), append(was.Values, r.Values...), append(was.Samples, r.Samples...)
		}
		*was = r
	}
	c.d.Live, c.d.Now, c.d.Cursor, c.d.Trouble = u.Live, u.Now, u.Cursor, u.Trouble
	if u.Title != "" {
		c.d.Title = u.Title
	}
	if u.Job != nil {
		c.d.Job = u.Job
	}
	if u.Differ != nil {
		c.d.Differ = u.Differ
	}
}
