// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// maxTables bounds the tables of a job, maxWorkers its workers.
const (
	maxTables  = 1 << 14
	maxWorkers = 1 << 16
)

// settings are what the servers and workers of a job agree about. Whoever says it first,
// the server's command line or the first worker, decides; all others say the same or
// nothing.
type settings struct {
	Job         string        `json:"job,omitempty"`
	Servers     int           `json:"servers"`
	Workers     int           `json:"workers,omitempty"` // 0: nobody has said
	Consistency *Consistency  `json:"consistency,omitempty"`
	Tables      []rows.Schema `json:"tables,omitempty"`
}

// table returns the schema of a name, nil for none.
func (s *settings) table(name string) *rows.Schema {
	for i := range s.Tables {
		if s.Tables[i].Name == name {
			return &s.Tables[i]
		}
	}
	return nil
}

// agree returns the settings with what another party says beside them, and whether that
// was new.
func (s settings) agree(other settings) (settings, bool, *Error) {
	changed := false
	if other.Job != "" && s.Job != other.Job {
		if s.Job != "" {
			return s, false, errorf(KindSettings, "the servers belong to job %q, not to %q", s.Job, other.Job)
		}
		s.Job, changed = other.Job, true
	}
	if other.Servers != s.Servers {
		return s, false, errorf(KindSettings, "the job has %d servers here, %d there", s.Servers, other.Servers)
	}
	if other.Workers != 0 && s.Workers != other.Workers {
		if s.Workers != 0 {
			return s, false, errorf(KindSettings, "the job has %d workers, not %d", s.Workers, other.Workers)
		}
		if other.Workers < 0 || other.Workers > maxWorkers {
			return s, false, errorf(KindSettings, "%d workers: want 1 to %d", other.Workers, maxWorkers)
		}
		s.Workers, changed = other.Workers, true
	}
	if c := other.Consistency; c != nil {
		norm := *c
		norm.Mode = c.mode()
		if s.Consistency != nil && *s.Consistency != norm {
			return s, false, errorf(KindSettings, "the consistency is %s, not %s", *s.Consistency, norm)
		}
		if err := norm.validate(s.Workers); err != nil {
			return s, false, errorf(KindSettings, "%w", err)
		}
		changed = changed || s.Consistency == nil
		s.Consistency = &norm
	}
	s.Tables = s.Tables[:len(s.Tables):len(s.Tables)]
	for _, t := range other.Tables {
		have := s.table(t.Name)
		if have == nil {
			if err := t.Validate(); err != nil {
				return s, false, errorf(KindTable, "%w", err).of(t.Name)
			}
			if len(s.Tables) >= maxTables {
				return s, false, errorf(KindTable, "a job has at most %d tables", maxTables).of(t.Name)
			}
			s.Tables, changed = append(s.Tables, t), true
		} else if here, there := schemaText(*have), schemaText(t); here != there {
			return s, false, errorf(KindTable, "the table is %s, not %s", here, there).of(t.Name)
		}
	}
	return s, changed, nil
}

// schemaText describes a schema, without what each server may choose.
func schemaText(t rows.Schema) string {
	t = t.WithDefaults() // a default means the same whether it is written or not
	t.Memory = 0
	text, err := json.Marshal(t)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// encode returns the settings as JSON.
func (s *settings) encode() []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("ps: settings: %v", err)) // of plain values
	}
	return text
}

// maxSettings bounds the JSON of settings: tables have a few hundred bytes each.
const maxSettings = 64 << 20

func decodeSettings(text []byte) (s settings, err error) {
	if len(text) > maxSettings {
		return s, fmt.Errorf("settings of %d bytes: want %d at most", len(text), maxSettings)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("settings: %w", err)
	}
	return s, nil
}
