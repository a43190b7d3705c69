// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// kinds gives an empty value of each kind that the manifests may have.
var kinds = map[string]func() any{
	"batch/v1 Job":                                  func() any { return &batch.Job{} },
	"v1 Service":                                    func() any { return &core.Service{} },
	"v1 PersistentVolumeClaim":                      func() any { return &core.PersistentVolumeClaim{} },
	"v1 ResourceQuota":                              func() any { return &core.ResourceQuota{} },
	"v1 LimitRange":                                 func() any { return &core.LimitRange{} },
	"networking.k8s.io/v1 NetworkPolicy":            func() any { return &networking.NetworkPolicy{} },
	"jobset.x-k8s.io/v1alpha2 JobSet":               func() any { return &jobset.JobSet{} },
	"trainer.kubeflow.org/v1alpha1 TrainingRuntime": func() any { return &trainer.TrainingRuntime{} },
	"trainer.kubeflow.org/v1alpha1 TrainJob":        func() any { return &trainer.TrainJob{} },
}

// decode returns the objects of a manifest. Unknown fields and fields that stand twice are
// errors, as kubectl --validate=strict has them.
func decode(file string) (objects []any, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for i, part := range bytes.Split(text, []byte("\n---\n")) {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(part, &head); err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", file, i, err)
		}
		empty := kinds[head.APIVersion+" "+head.Kind]
		if empty == nil {
			return nil, fmt.Errorf("%s: document %d: the kind %q of %q is not known here", file, i, head.Kind, head.APIVersion)
		}
		object := empty()
		if err := yaml.UnmarshalStrict(part, object); err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", file, i, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// podsOf returns the pods that an object makes, by the name of their template.
func podsOf(object any) map[string]core.PodTemplateSpec {
	pods := map[string]core.PodTemplateSpec{}
	switch o := object.(type) {
	case *batch.Job:
		pods[o.Name] = o.Spec.Template
	case *jobset.JobSet:
		for _, r := range o.Spec.ReplicatedJobs {
			pods[o.Name+"/"+r.Name] = r.Template.Spec.Template
		}
	case *trainer.TrainingRuntime:
		for _, r := range o.Spec.Template.Spec.ReplicatedJobs {
			pods[o.Name+"/"+r.Name] = r.Template.Spec.Template
		}
	}
	return pods
}

func manifests(t *testing.T) map[string][]any {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	all := map[string][]any{}
	for _, file := range files {
		objects, err := decode(file)
		if err != nil {
			t.Error(err)
		}
		all[file] = objects
	}
	return all
}

// TestPods: every pod of the manifests runs without root, with a root that cannot be written,
// within limits, and has more time to end than its launcher.
func TestPods(t *testing.T) {
	found := 0
	for file, objects := range manifests(t) {
		for _, object := range objects {
			for name, pod := range podsOf(object) {
				found++
				for _, fault := range faults(&pod) {
					t.Errorf("%s: %s: %s", file, name, fault)
				}
			}
		}
	}
	if found != 3 {
		t.Errorf("%d pods in the manifests, want 3", found)
	}
}

func faults(template *core.PodTemplateSpec) (faults []string) {
	pod := &template.Spec
	want := func(ok bool, fault string) {
		if !ok {
			faults = append(faults, fault)
		}
	}
	want(template.Labels["app"] == "train", "network.yaml does not select it")
	if want(pod.Affinity != nil && pod.Affinity.PodAntiAffinity != nil, "its pods may all be on one machine"); pod.Affinity != nil {
		for _, term := range pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			for key, value := range term.PodAffinityTerm.LabelSelector.MatchLabels {
				want(template.Labels[key] == value, "its anti-affinity selects other pods")
			}
		}
	}
	s := pod.SecurityContext
	want(s != nil && s.RunAsNonRoot != nil && *s.RunAsNonRoot && s.RunAsUser != nil && *s.RunAsUser != 0, "it may run as root")
	want(s != nil && s.SeccompProfile != nil, "it has no seccomp profile")
	want(pod.AutomountServiceAccountToken != nil && !*pod.AutomountServiceAccountToken, "it gets a token for the API server")
	want(pod.TerminationGracePeriodSeconds != nil, "it has the 30 seconds of the default to end")
	volumes, unused := map[string]bool{}, map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name], unused[v.Name] = true, true
	}
	want(len(pod.Containers) == 1, "it has not one container")
	want(len(pod.InitContainers) == 1 && slices.Contains(pod.InitContainers[0].Args, "doctor"), "nothing examines the machine before the ranks start")
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		want(s != nil && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem, "its root can be written")
		want(s != nil && s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation, "it may gain privileges")
		want(s != nil && s.Capabilities != nil && len(s.Capabilities.Drop) == 1 && s.Capabilities.Drop[0] == "ALL", "it has capabilities")
		want(!c.Resources.Limits.Cpu().IsZero() && !c.Resources.Limits.Memory().IsZero(), "it has no limits")
		for _, m := range c.VolumeMounts {
			want(volumes[m.Name], "the volume "+m.Name+" of a mount is missing")
			delete(unused, m.Name)
		}
		for _, e := range c.Env {
			want(!strings.Contains(e.Name, "TOKEN") || e.Value == "", "the token stands in the manifest")
		}
		for _, a := range c.Args {
			var seconds int64
			if _, err := fmt.Sscanf(a, "--shutdown-timeout=%d", &seconds); err == nil && pod.TerminationGracePeriodSeconds != nil {
				want(seconds < *pod.TerminationGracePeriodSeconds, "the launcher would be killed before its ranks have ended")
			}
		}
	}
	for v := range unused {
		want(false, "nothing mounts the volume "+v)
	}
	return faults
}

// TestStrict: a manifest with a field that does not exist, stands twice or has another type is
// refused.
func TestStrict(t *testing.T) {
	text, err := os.ReadFile("kubernetes/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"completionMode:", "completionsMode:"},
		{"  parallelism: 4\n", "  parallelism: 4\n  parallelism: 5\n"},
		{"parallelism: 4", "parallelism: many"},
		{"kind: Job", "kind: Jobb"},
	} {
		if !bytes.Contains(text, []byte(change[0])) {
			t.Fatalf("%q is not in the manifest", change[0])
		}
		file := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(file, bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := decode(file); err == nil {
			t.Errorf("%q in place of %q is accepted", change[1], change[0])
		}
	}
}
