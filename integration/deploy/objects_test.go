package deploy_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

type (
	labels = map[string]any

	// object is a Kubernetes object of any kind: the fields of which tests make use.
	object struct {
		Kind     string
		Metadata metadata
		Spec     struct {
			Selector                           labels // of a Service; otherwise it has matchLabels
			Ports                              []struct{ Port int }
			ServiceName, CompletionMode        string
			Replicas, Completions, Parallelism int
			MaxUnavailable                     int
			Template                           struct {
				Metadata metadata
				Spec     pod
			}
		}
	}
	metadata struct {
		Name   string
		Labels labels
	}
	pod struct {
		TerminationGracePeriodSeconds int
		TopologySpreadConstraints     []struct{ LabelSelector struct{ MatchLabels labels } }
		Containers                    []container
		Volumes                       []struct{ Secret struct{ Items []labels } }
	}
	container struct {
		Args []string
		Env  []struct {
			Name, Value string
			ValueFrom   labels
		}
		LivenessProbe, ReadinessProbe probe
		VolumeMounts                  []struct{ Name, MountPath string }
	}
	probe struct {
		TimeoutSeconds int
		HTTPGet        struct{ Path string }
	}
)

// schemas are those of Kubernetes' API server. Its types for Go would check no more, and take a third
// as long to compile as this repository.
const schemas = "../integration/deploy/testdata/kubernetes.json"

// definitions has the schema of each kind of object.
var definitions = map[string]string{
	"v1 Service":                    "core.v1.Service",
	"apps/v1 StatefulSet":           "apps.v1.StatefulSet",
	"batch/v1 Job":                  "batch.v1.Job",
	"policy/v1 PodDisruptionBudget": "policy.v1.PodDisruptionBudget",
}

// parse returns the object that text is. It fails if an API server would refuse it: for a field that
// does not exist, has another type, or is missing.
func parse(t *testing.T, text string) (o object) {
	t.Helper()
	document, err := yaml.YAMLToJSONStrict([]byte(text))
	require.NoError(t, err, "%s", text)
	var is struct{ APIVersion, Kind string }
	require.NoError(t, json.Unmarshal(document, &is))
	definition := definitions[is.APIVersion+" "+is.Kind]
	require.NotEmpty(t, definition, "no schema of %s", is.Kind)

	all, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, schemas)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource(schemas, all))
	schema, err := c.Compile(schemas + "#/definitions/io.k8s.api." + definition)
	require.NoError(t, err)
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(instance), "%s", text)
	require.NoError(t, json.Unmarshal(document, &o))
	return o
}

// documents returns the objects in a YAML file, of the given kinds.
func documents(t *testing.T, file string, want ...string) (all []object) {
	t.Helper()
	var kinds []string
	for text := range strings.SplitSeq(read(t, file), "\n---\n") {
		o := parse(t, text)
		all, kinds = append(all, o), append(kinds, o.Kind)
	}
	require.Equal(t, want, kinds)
	return all
}
