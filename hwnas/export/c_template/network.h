/* $title

   Input and output of the network. Written by hwnas. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HWNAS_HEIGHT $height
#define HWNAS_WIDTH $width
#define HWNAS_CHANNELS $channels
#define HWNAS_DECODED $decoded /* side of the training images */
#define HWNAS_INPUTS (HWNAS_HEIGHT * HWNAS_WIDTH * HWNAS_CHANNELS)
#define HWNAS_OUTPUTS $outputs

/* Crop the largest central square of an image (height, width, HWNAS_CHANNELS), 0 to 255, and resize
   it to HWNAS_HEIGHT x HWNAS_WIDTH as the training images: bilinear with antialiasing. Channels are
   RGB, or grey. If the side HWNAS_DECODED is another one, images are resized to it first, in a static
   buffer of HWNAS_DECODED * HWNAS_DECODED * HWNAS_CHANNELS bytes. */
void hwnas_resize(const uint8_t *image, size_t height, size_t width, uint8_t *pixels);

/* Normalise and quantise HWNAS_INPUTS pixels (height, width, channels) to the int8 input. */
void hwnas_preprocess(const uint8_t *pixels, int8_t *input);

/* Convert the int8 output of the network to HWNAS_OUTPUTS numbers. */
void hwnas_dequantise(const int8_t *output, float *values);
$declarations
#ifdef __cplusplus
}
#endif
