// Prints the series that dcgm-exporter would export of some GPUs, with the pods that it attributes them to, and ends.
//
// Which pod has which GPU, and the text, are dcgm-exporter's own code: its pod mapper asks the kubelet's PodResources
// service and the API server. DCGM is stood in for: each GPU has one made-up value. It is built into a copy of
// dcgm-exporter's source (attribution.py), since these packages are internal to it.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/NVIDIA/dcgm-exporter/internal/pkg/appconfig"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/collector"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/counters"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/deviceinfo"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/rendermetrics"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/transformation"
)

// A device provider of the given UUIDs; PodMapper asks it for nothing else.
type gpus struct {
	deviceinfo.Provider
	uuids []string
}

func (g gpus) GPUCount() uint { return uint(len(g.uuids)) }

func (g gpus) GPU(i uint) deviceinfo.GPUInfo {
	return deviceinfo.GPUInfo{DeviceInfo: dcgm.Device{GPU: i, UUID: g.uuids[i]}}
}

func main() {
	var uuids []string
	var config appconfig.Config
	for flag, target := range map[string]any{"GPUS": &uuids, "CONFIG": &config} {
		if err := json.Unmarshal([]byte(os.Getenv(flag)), target); err != nil {
			log.Fatalf("%s=%q: %v", flag, os.Getenv(flag), err)
		}
	}
	counter := counters.Counter{FieldName: "DCGM_FI_DEV_POWER_USAGE", PromType: "gauge", Help: "Power draw (in W)."}
	metrics := collector.MetricsByCounter{}
	for index, uuid := range uuids {
		metrics[counter] = append(metrics[counter], collector.Metric{
			Counter: counter, Value: fmt.Sprint(100 + index), GPU: fmt.Sprint(index), GPUUUID: uuid, UUID: "UUID",
			Labels: map[string]string{}, Attributes: map[string]string{},
		})
	}
	mapper := transformation.NewPodMapper(&config)
	mapper.Run()
	if err := mapper.Process(metrics, gpus{uuids: uuids}); err != nil {
		log.Fatal(err)
	}
	if err := rendermetrics.RenderGroup(os.Stdout, dcgm.FE_GPU, metrics); err != nil {
		log.Fatal(err)
	}
}
