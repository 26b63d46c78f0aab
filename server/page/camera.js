// Takes an image with the camera, in a dialog. The camera is switched off when the dialog closes.

import { find, make } from "./dom.js";
import { jpeg } from "./pictures.js";

const WHY = {
  NotAllowedError: "The browser does not allow this page to use the camera. Allow it in the browser's settings.",
  NotFoundError: "This device has no camera. Choose a file instead.",
  NotReadableError: "Another program uses the camera. Close it, then try again.",
};

const dialog = find("#camera");
const video = find("video", dialog);
const said = find("[role=status]", dialog);
const snap = find("[data-do=snap]", dialog);

let opening = 0; // number of the last opening; a camera may start after its dialog was closed
let stream;
let take;

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

/** Opens the dialog. `onPicture` is called with a JPEG if the user takes one. */
export async function openCamera(onPicture) {
  const mine = ++opening;
  take = onPicture;
  said.textContent = "Waiting for the camera…";
  snap.disabled = true;
  dialog.showModal();
  try {
    const opened = await navigator.mediaDevices.getUserMedia({
      video: { facingMode: "environment", width: { ideal: 1280 }, height: { ideal: 960 } },
    });
    if (mine !== opening) return opened.getTracks().forEach((track) => track.stop());
    stream = video.srcObject = opened;
    await video.play();
    said.textContent = "";
    snap.disabled = false;
    snap.focus();
  } catch (error) {
    if (mine === opening) said.textContent = WHY[error.name] ?? `The camera does not work: ${error.message}`;
  }
}

function stop() {
  opening++;
  stream?.getTracks().forEach((track) => track.stop());
  stream = video.srcObject = null;
}

snap.addEventListener("click", async () => {
  const canvas = make("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  dialog.close();
  take(await jpeg(canvas));
});
find("[data-do=cancel]", dialog).addEventListener("click", () => dialog.close());
dialog.addEventListener("close", stop);
