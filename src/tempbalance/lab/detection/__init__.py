"""Object detection: data in VOC's layout, recipe and training with ultralytics."""
