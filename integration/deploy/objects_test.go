package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
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
			Selector labels // of a Service; otherwise it has matchLabels
			Ports    []struct {
				Name string
				Port int
			}
			ServiceName, CompletionMode        string
			Replicas, Completions, Parallelism int
			MaxUnavailable                     int
			VolumeClaimTemplates               []struct {
				Spec struct{ StorageClassName string }
			}
			Template struct {
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
		Tolerations                   []labels
		Containers                    []container
		Volumes                       []struct{ Secret struct{ Items []labels } }
	}
	container struct {
		Image string
		Args  []string
		Env   []struct {
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

// validate compares JSON with the schema at a place of a file.
func validate(t *testing.T, file, place string, document []byte) error {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, file)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource(file, schema))
	compiled, err := c.Compile(file + "#" + place)
	require.NoError(t, err)
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	require.NoError(t, err)
	return compiled.Validate(instance)
}

// parse returns the object that text is. It is an error if an API server refuses it: for a field that
// does not exist, has another type, or is missing.
func parse(t *testing.T, text string) (o object, err error) {
	t.Helper()
	document, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return object{}, err
	}
	var is struct{ APIVersion, Kind string }
	if err := json.Unmarshal(document, &is); err != nil {
		return object{}, err
	}
	name, ok := definitions[is.APIVersion+" "+is.Kind]
	if !ok {
		return object{}, fmt.Errorf("no schema of %s %s", is.APIVersion, is.Kind)
	}
	if err := validate(t, schemas, "/definitions/io.k8s.api."+name, document); err != nil {
		return object{}, err
	}
	return o, json.Unmarshal(document, &o)
}

// documents returns the objects in a YAML file, of the given kinds.
func documents(t *testing.T, file string, want ...string) (all []object) {
	t.Helper()
	var kinds []string
	for text := range strings.SplitSeq(read(t, file), "\n---\n") {
		o, err := parse(t, text)
		require.NoError(t, err, "%s", text)
		all, kinds = append(all, o), append(kinds, o.Kind)
	}
	require.Equal(t, want, kinds)
	return all
}
